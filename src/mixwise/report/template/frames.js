// The weights of a run at one step: the rounds unpacked, their sum on the arcs, and the matrix that they form together.
const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const VALUE = Object.fromEntries([...LETTERS].map((letter, k) => [letter, k]));

function unpack(round, arcs) {
  const weights = new Float32Array(arcs);
  if (typeof round === 'string') {
    for (let a = 0; a < arcs; a++) weights[a] = (VALUE[round[2 * a]] * 64 + VALUE[round[2 * a + 1]]) / 1000;
  } else for (let k = 0; k < round.length; k += 2) weights[round[k]] = round[k + 1] / 1000;
  return weights;
}

// The latest record at or before a step; a policy with fixed weights has only one.
function frameAt({ at: steps }, step) {
  let k = 0;
  while (k + 1 < steps.length && steps[k + 1] <= step) k++;
  return k;
}

const roundsOf = ({ weights }, channel) => weights[channel] || weights.params;
const roundCount = (run, step, channel) => (run.weights ? roundsOf(run, channel)[frameAt(run.weights, step)].length : 0);

// The weights on the arcs (summed over the rounds of a mixing) and W (n × n), averaged over the last `mean` records; or
// those of one round. `round` of an arc is the round in which it carries the most, by which it is colored.
function weightsAt(run, step, mean, channel, only = null) {
  const packed = run.weights, { n } = data.scenes[run.scene];
  const rounds = roundsOf(run, channel);
  const last = frameAt(packed, step), first = Math.max(0, last + 1 - Math.max(1, mean)), count = packed.arcs.length / 2;
  const on = new Float32Array(count), W = new Float32Array(n * n), most = new Float32Array(count), round = new Uint16Array(count);
  const shown = only === null ? null : only % rounds[last].length;
  for (let k = first; k <= last; k++) {
    const unpacked = (shown === null ? rounds[k] : [rounds[k][shown]]).map(each => unpack(each, count));
    unpacked.forEach((weights, r) => {
      for (let a = 0; a < count; a++) {
        on[a] += weights[a] / (last + 1 - first);
        if (weights[a] > most[a]) { most[a] = weights[a]; round[a] = shown ?? r; }
      }
    });
    const together = unpacked.map(weights => matrix(weights, packed.arcs, n)).reduce((A, B) => multiply(A, B, n));
    for (let e = 0; e < n * n; e++) W[e] += together[e] / (last + 1 - first);
  }
  return { on, W, round, shown, step: packed.at[last], rounds: rounds[last].length };
}

// The models of all nodes at a step: two numbers each, from −1 to 1 times `size`, and their last accuracies.
function nodesAt({ nodes }, step) {
  if (!nodes) return null;
  const k = frameAt(nodes, step), numbers = text => text.match(/../g).map(pair => VALUE[pair[0]] * 64 + VALUE[pair[1]]);
  const accuracy = nodes.accuracy && nodes.accuracy.slice(0, k + 1).filter(Boolean).at(-1);
  return { xy: numbers(nodes.xy[k]).map(value => nodes.size * (value / 2000 - 1)), accuracy: accuracy ? numbers(accuracy).map(value => value / 1000) : null };
}

function matrix(weights, arcs, n) {
  const W = new Float32Array(n * n);
  for (let i = 0; i < n; i++) W[i * n + i] = 1;
  for (let a = 0; a < weights.length; a++) {
    const i = arcs[2 * a], j = arcs[2 * a + 1];
    W[i * n + j] = weights[a];
    W[i * n + i] -= weights[a];  // a loop has the rest of its row
  }
  return W;
}

function multiply(A, B, n) {
  const C = new Float32Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) {
      const a = A[i * n + k];
      if (a) for (let j = 0; j < n; j++) C[i * n + j] += a * B[k * n + j];
    }
  }
  return C;
}
