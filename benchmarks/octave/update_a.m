% One gradient step for a_l of every kind of sample (interior, then boundary).
function q = update_a(q, l)
  s = q.s(l + 1); W = q.W{l + 1}; b = q.b{l + 1};
  if q.pinn
    rho = s * sum(q.t(l:end, :), 1); w = sum(q.t(l + 1:end, :), 1);
    if l + 1 < q.L, goal = q.a1{l + 1}; up = q.r1{l + 1}; else, goal = zeros(0, q.N1); up = goal; end
    [q.a1{l}, q.r1{l}, up, q.rD{l + 1}, q.h1(l, :), q.z1{l}, q.g1{l}] = step_a(q.rule, q.sigma, W, b, rho, w, goal, q.D{l + 1}, ...
      q.a1{l}, q.r1{l}, up, q.rD{l + 1}, q.D{l}, q.h1(l, :), q.z1{l}, q.g1{l});
    if l + 1 < q.L
      q.r1{l + 1} = up;
    end
  end
  none = zeros(rows(q.a2{l}), 0); above = zeros(rows(W), 0); one = ones(1, q.N2);
  [q.a2{l}, q.r2{l}, q.r2{l + 1}, ~, q.h2(l, :), q.z2{l}, q.g2{l}] = step_a(q.rule, q.sigma, W, b, s * one, one, target2(q, l + 1), above, ...
    q.a2{l}, q.r2{l}, q.r2{l + 1}, above, none, q.h2(l, :), q.z2{l}, q.g2{l});
  q = measure(measure(q, l), l + 1);
end
