% W_l, then b_l: least squares on the stacked, weighted columns, by mrdivide.
function q = update_Wb(q, l)
  lambda = 0; e = energy(q);
  for m = 1:l - 1
    lambda = lambda * q.s(m) + e(m);
  end
  z2 = input2(q, l); y2 = target2(q, l); w2 = sqrt(1 / q.N2);
  inner = rows(z2); outer = rows(q.b{l});
  A = [w2 * z2, sqrt(lambda) * eye(inner)];
  P = [w2 * (y2 - q.b{l}), zeros(outer, inner)];
  value1 = q.pinn && l < q.L;
  if q.pinn
    Z = inputD(q, l);
    A = [Z / sqrt(q.N1), A]; P = [q.D{l} / sqrt(q.N1), P];
  end
  if value1
    z1 = input1(q, l); w1 = sqrt(sum(q.t(l:end, :), 1) / q.N1);
    A = [w1 .* z1, A]; P = [w1 .* (q.a1{l} - q.b{l}), P];
  end
  W = P / A;
  p = w2 * (y2 - W * z2); w = w2 * ones(1, q.N2);
  if value1
    p = [w1 .* (q.a1{l} - W * z1), p]; w = [w1, w];
  end
  b = p / w;
  q.W{l} = W; q.b{l} = b; q.s(l) = sumsq(W(:));
  q.r2{l} = W * z2 + b - y2;
  if q.pinn
    q.rD{l} = W * Z - q.D{l};
  end
  if value1
    q.r1{l} = W * z1 + b - q.a1{l};
  end
  q = measure(q, l);
end
