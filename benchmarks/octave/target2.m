% What should leave layer l: a_l, at the top the labels.
function y = target2(q, l)
  if l == q.L, y = q.Y2; else, y = q.a2{l}; end
end
