% The step -h * gradient / (2 rho), per sample, where Armijo's test passes; then h grows, else it shrinks.
% rule: Armijo's constant, growth, shrinkage, the greatest h.
% goal, up: target and value defect of the layer above (no rows: none); goalD, upD, D: the same for the tangents (no columns: none).
function [a, r, up, upD, h, z, g] = step_a(rule, sigma, W, b, rho, w, goal, goalD, a, r, up, upD, D, h, z, g)
  N = columns(a); d = columns(D) / N;
  gradient = -rho .* r;
  if rows(goal) > 0
    gradient += g .* (W' * (w .* up));
  end
  if d > 0
    [~, ~, bend] = activation(sigma, a);
    gradient += bend .* sum(reshape(D .* (W' * upD), rows(a), N, d), 3);
  end
  scale = zeros(1, N); scale(rho > 0) = 1 ./ rho(rho > 0);
  move = -(h .* scale) .* gradient;
  a_new = a + move; r_new = r - move;
  [z_new, g_new] = activation(sigma, a_new);
  up_new = up; upD_new = upD;
  if rows(goal) > 0
    up_new = W * z_new + b - goal;
  end
  if d > 0
    upD_new = W * (repmat(g_new, 1, d) .* D) - goalD;
  end
  phi = @(r, up, upD) w .* sumsq(up, 1) + sum(reshape(sumsq(upD, 1), N, d), 2)' + rho .* sumsq(r, 1);
  taken = phi(r_new, up_new, upD_new) <= phi(r, up, upD) - rule(1) * 2 * scale .* h .* sumsq(gradient, 1);
  a(:, taken) = a_new(:, taken); r(:, taken) = r_new(:, taken);
  z(:, taken) = z_new(:, taken); g(:, taken) = g_new(:, taken);
  up(:, taken) = up_new(:, taken);
  if d > 0
    all_d = repmat(taken, 1, d);
    upD(:, all_d) = upD_new(:, all_d);
  end
  h = taken .* min(rule(2) * h, rule(4)) + ! taken .* (rule(3) * h);
end
