% The SAPM loss.
function total = loss(q)
  omega = [fliplr(cumprod(fliplr(q.s(2:end)))), 1];
  total = omega * energy(q)';
  if q.pinn
    total += sumsq(sum(q.C .* reshape(q.D{q.L}, q.N1, q.d)', 1) - q.Y1) / q.N1;
  end
end
