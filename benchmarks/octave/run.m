% Sweeps of Algorithm 1 or 2 from the start points in a .mat file; prints what engine.py reads:
%   loss <number>   after each of three sweeps from `compared`
%   ms <number>     CPU milliseconds per sweep, three repetitions from `timed`, each of `seconds` or at least one sweep
function run(file, seconds)
  starts = load(file);
  q = prepare(starts.compared);
  took = zeros(1, 3);
  for k = 1:3
    began = cputime; q = sweep(q); took(k) = cputime - began;
    printf("loss %.17g\n", loss(q));
  end
  count = ceil(seconds / max(min(took), 1e-3));
  start = prepare(starts.timed);
  for k = 1:3
    q = start;
    began = cputime;
    for j = 1:count
      q = sweep(q);
    end
    took(k) = (cputime - began) / count;
  end
  printf("ms %.9g\n", 1e3 * took);
end
