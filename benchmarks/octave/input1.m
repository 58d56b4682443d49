% What enters layer l.
function z = input1(q, l)
  if l == 1, z = q.X1; else, z = q.z1{l - 1}; end
end
