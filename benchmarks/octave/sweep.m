% One sweep. Algorithm 1: W_L, b_L, then a_l, W_l, b_l downwards. Algorithm 2: W_l, b_l, d_l, a_l from L downwards.
function q = sweep(q)
  for l = q.L:-1:1
    if ! q.pinn && l < q.L
      q = update_a(q, l);
    end
    q = update_Wb(q, l);
    if q.pinn
      q = update_d(q, l);
      if l < q.L
        q = update_a(q, l);
      end
    end
  end
end
