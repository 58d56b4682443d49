% What enters layer l.
function z = input2(q, l)
  if l == 1, z = q.X2; else, z = q.z2{l - 1}; end
end
