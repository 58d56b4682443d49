% The tangents that enter layer l: unit vectors, then sigma' .* d.
function Z = inputD(q, l)
  if l == 1
    Z = kron(eye(q.d), ones(1, q.N1));
  else
    Z = repmat(q.g1{l - 1}, 1, q.d) .* q.D{l - 1};
  end
end
