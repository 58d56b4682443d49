% The squared norms of the defects of layer l.
function q = measure(q, l)
  q.e2(l) = sumsq(q.r2{l}(:)) / q.N2;
  if q.pinn
    q.eD(l) = sumsq(q.rD{l}(:)) / q.N1;
    if l < q.L
      q.v(l, :) = sumsq(q.r1{l}, 1);
    end
  end
end
