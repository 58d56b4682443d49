% Per layer, the share of the loss before omega_l. Omega_l^2 is the sum of t over l..L-1.
function e = energy(q)
  e = q.e2;
  if q.pinn
    Omega = flipud(cumsum(flipud(q.t), 1));
    e += sum(Omega .* q.v, 2)' / q.N1 + q.eD;
  end
end
