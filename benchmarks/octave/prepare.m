% From the exported start point (sigma, rule, W, b, X2, Y2, a2; for a PINN also X1, C, Y1, a1, D) to the iterate of `sweep`.
% Columns are samples; D{l} is [d_{l,1} ... d_{l,d}], side by side. Suffix 1: interior, 2: boundary or regression.
% z, g: sigma and sigma' at a; r1, r2, rD: defects; h1, h2: step lengths for a; s, t, v: squared norms.
function q = prepare(q)
  q.L = numel(q.W); q.N2 = columns(q.X2); q.pinn = isfield(q, "X1");
  for l = 1:q.L
    q.s(l) = sumsq(q.W{l}(:));
    if l < q.L
      [q.z2{l}, q.g2{l}] = activation(q.sigma, q.a2{l});
    end
    q.r2{l} = q.W{l} * input2(q, l) + q.b{l} - target2(q, l);
  end
  q.h2 = ones(q.L, q.N2);
  if ! q.pinn
    for l = 1:q.L, q = measure(q, l); end
    return
  end
  [q.d, q.N1] = size(q.X1);
  q.h1 = ones(q.L, q.N1); q.t = zeros(q.L, q.N1); q.v = zeros(q.L, q.N1);
  for l = 1:q.L
    if l < q.L
      [q.z1{l}, q.g1{l}] = activation(q.sigma, q.a1{l});
      q.t(l, :) = sum(reshape(sumsq(q.D{l}, 1), q.N1, q.d), 2)';
      q.r1{l} = q.W{l} * input1(q, l) + q.b{l} - q.a1{l};
    end
    q.rD{l} = q.W{l} * inputD(q, l) - q.D{l};
    q = measure(q, l);
  end
end
