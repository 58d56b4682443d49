% d_l: one small least-squares system per sample, by mldivide; its d right-hand sides at once.
function q = update_d(q, l)
  D = q.rD{l} + q.D{l}; M = rows(D); N1 = q.N1;
  new = zeros(size(D));
  if l == q.L
    for n = 1:N1
      new(n:N1:end) = [q.C(:, n)'; eye(q.d)] \ [q.Y1(n); D(n:N1:end)'];
    end
    q.D{l} = new; q.rD{l} = D - new;
    q = measure(q, l);
    return
  end
  W = q.W{l + 1}; norm_W = sqrt(q.s(l + 1)); E = eye(M); O = zeros(M, q.d);
  xi = zeros(1, N1);
  for m = 1:l
    xi = q.s(m + 1) * (xi + q.v(m, :));
  end
  xi = sqrt(xi); slope = q.g1{l}; above = q.D{l + 1};
  for n = 1:N1
    new(:, n:N1:end) = [W .* slope(:, n)'; norm_W * E; xi(n) * E] \ [above(:, n:N1:end); norm_W * D(:, n:N1:end); O];
  end
  q.D{l} = new; q.rD{l} = D - new;
  q.rD{l + 1} = W * inputD(q, l + 1) - above;
  q.t(l, :) = sum(reshape(sumsq(new, 1), N1, q.d), 2)';
  q = measure(measure(q, l), l + 1);
end
