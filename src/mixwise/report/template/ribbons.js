// A picture of a graph. An edge is a ribbon, as wide at each end as the weight that arrives there; a node is a ring of
// its labels.
const SIDE = 460;

function graphPicture(scene, run) {
  const { n, xy } = scene;
  const radius = Math.max(3.5, Math.min(23, 88 / Math.sqrt(n)));
  const spot = i => [34 + xy[2 * i] * (SIDE - 68), 34 + xy[2 * i + 1] * (SIDE - 68)];
  const ends = pairs(scene, run), sparse = ends.length <= 2.2 * n;  // among many edges a bend is only one more line
  const edges = ends.map(([i, j]) => ({ i, j, bend: sparse ? bendOf(i, j, n, spot, radius) : 0 }));
  const widest = Math.max(5, Math.min(24, radius * 1.2));  // of a weight of 1/2
  const ribbons = edges.map(({ i, j }) => svg('path', { class: 'ribbon', 'data-edge': `${i}-${j}` }));
  const lines = edges.map(edge => svg('path', { class: 'base', d: centerLine(edge, spot) }));
  const nodes = [...Array(n).keys()].map(i => nodeRing(i, spot(i), radius, scene));
  const place = svg('svg', {
    viewBox: `0 0 ${SIDE} ${SIDE}`, tabindex: 0, role: 'group', 'aria-roledescription': 'graph',
    'aria-label': `Graph of ${n} nodes. Arrow keys move from node to node.`,
  }, svg('g', {}, lines), svg('g', {}, ribbons), svg('g', {}, nodes));
  const arcs = new Map();
  if (run.weights) for (let a = 0; a < run.weights.arcs.length / 2; a++) arcs.set(run.weights.arcs[2 * a] * n + run.weights.arcs[2 * a + 1], a);
  const weight = (on, i, j) => (arcs.has(i * n + j) ? on[arcs.get(i * n + j)] : 0);
  return {
    place, edges, ribbons, nodes, weight,
    draw(on, scale = 1) {
      edges.forEach((edge, e) => {
        const [hear, heard] = [weight(on, edge.j, edge.i), weight(on, edge.i, edge.j)];  // by i from j, by j from i
        ribbons[e].setAttribute('d', hear + heard < 0.002 ? '' : ribbon(edge, spot, hear * scale * widest * 2, heard * scale * widest * 2));
        ribbons[e].setAttribute('data-weight', ((hear + heard) / 2).toFixed(3));
        ribbons[e].style.opacity = 0.3 + 0.7 * Math.min(1, hear + heard);
      });
    },
  };
}

// Edges of the graph and of every W on it, each once.
function pairs(scene, run) {
  const found = new Set();
  const add = list => { for (let k = 0; k < list.length; k += 2) found.add(Math.min(list[k], list[k + 1]) * scene.n + Math.max(list[k], list[k + 1])); };
  add(scene.edges);
  if (run.weights) add(run.weights.arcs);
  return [...found].sort((a, b) => a - b).map(key => [Math.floor(key / scene.n), key % scene.n]);
}

// A straight edge that would run through a third node takes a bend around it.
function bendOf(i, j, n, spot, radius) {
  const [ax, ay] = spot(i), [bx, by] = spot(j), length = Math.hypot(bx - ax, by - ay) || 1;
  for (let k = 0; k < n && n <= 64; k++) {
    if (k === i || k === j) continue;
    const [x, y] = spot(k), along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length ** 2;
    const off = Math.abs((bx - ax) * (ay - y) - (ax - x) * (by - ay)) / length;
    if (along > 0.02 && along < 0.98 && off < radius * 0.8) return 2.4 * radius;
  }
  return 0;
}

function pointOn({ i, j, bend }, spot, t) {
  const [ax, ay] = spot(i), [bx, by] = spot(j), length = Math.hypot(bx - ax, by - ay) || 1;
  const lift = 4 * bend * t * (1 - t), nx = -(by - ay) / length, ny = (bx - ax) / length;
  return [ax + (bx - ax) * t + nx * lift, ay + (by - ay) * t + ny * lift, nx, ny];
}

function centerLine(edge, spot) {
  return Array.from({ length: edge.bend ? 13 : 2 }, (_, k, last = edge.bend ? 12 : 1) => pointOn(edge, spot, k / last))
    .map(([x, y], k) => `${k ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
}

function ribbon(edge, spot, from, to) {
  const parts = edge.bend ? 12 : 1, sides = [[], []];
  for (let k = 0; k <= parts; k++) {
    const t = k / parts, [x, y, nx, ny] = pointOn(edge, spot, t), half = (from * (1 - t) + to * t) / 2;
    sides[0].push(`${(x + nx * half).toFixed(1)} ${(y + ny * half).toFixed(1)}`);
    sides[1].unshift(`${(x - nx * half).toFixed(1)} ${(y - ny * half).toFixed(1)}`);
  }
  return `M${[...sides[0], ...sides[1]].join('L')}Z`;
}

function nodeRing(i, [x, y], radius, scene) {
  const counts = scene.counts && scene.counts[i], total = counts ? counts.reduce((a, b) => a + b, 0) : 0;
  const group = svg('g', { class: counts ? 'node' : 'node plain', 'data-node': i }, svg('circle', { class: 'node-back', cx: x, cy: y, r: counts ? radius : radius * 0.75 }));
  const thick = radius * 0.38, middle = radius - thick / 2, around = 2 * Math.PI * middle;
  let before = 0;
  if (total) {
    counts.forEach((count, k) => {
      if (!count) return;
      const part = svg('circle', {
        cx: x, cy: y, r: middle, fill: 'none', 'stroke-width': thick, transform: `rotate(-90 ${x} ${y})`,
        'stroke-dasharray': `${(around * count / total).toFixed(2)} ${around.toFixed(2)}`, 'stroke-dashoffset': (-around * before / total).toFixed(2),
      });
      part.style.stroke = classColor(k, scene.classes.length);
      group.append(part);
      before += count;
    });
  }
  if (radius >= 9) group.append(svg('text', { x, y, 'font-size': radius * 0.62, text: scene.labels && scene.labels.every(label => label.length <= 3) ? scene.labels[i] : i }));
  return group;
}

// Ten colors that color-blind readers tell apart; more classes than that are a ramp.
const classColor = (k, classes) => (classes <= 10 ? `var(--k${k})` : `hsl(${250 - 210 * k / (classes - 1)} 55% ${35 + 35 * k / (classes - 1)}%)`);
