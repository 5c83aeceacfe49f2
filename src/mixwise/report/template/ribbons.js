// A picture of a graph. An edge is a ribbon, as wide at each end as the weight that arrives there, in the color of its
// round; a node is a pie of its labels around its accuracy.
const SIDE = 460;
const roundColor = round => `var(--c${round % 7})`;

function graphPicture(scene, run) {
  const { n, xy } = scene;
  const spot = i => [34 + xy[2 * i] * (SIDE - 68), 34 + xy[2 * i + 1] * (SIDE - 68)];
  const radius = Math.max(3.5, Math.min(23, 88 / Math.sqrt(n), Math.max(11, 0.45 * nearest(n, spot))));
  const ends = pairs(scene, run), sparse = ends.length <= 2.2 * n;  // among many edges a bend is only one more line
  const edges = ends.map(([i, j]) => ({ i, j, bend: sparse ? bendOf(i, j, n, spot, radius) : 0 }));
  const widest = Math.max(5, Math.min(24, radius * 1.2));  // of a weight of 1/2
  const ribbons = edges.map(({ i, j }) => svg('path', { class: 'ribbon', 'data-edge': `${i}-${j}` }));
  const lines = edges.map(edge => svg('path', { class: 'base', d: centerLine(edge, spot) }));
  const nodes = [...Array(n).keys()].map(i => nodeRing(i, spot(i), radius, scene));
  const place = svg('svg', {
    viewBox: `0 0 ${SIDE} ${SIDE}`, tabindex: 0, role: 'group', 'aria-roledescription': 'graph',
    'aria-label': `Graph of ${n} nodes. Arrow keys move from node to node.`,
  }, svg('g', {}, lines), svg('g', {}, ribbons), svg('g', {}, nodes), svg('g', {}, cityNames(scene, spot, radius)));
  const arcs = new Map();
  if (run.weights) for (let a = 0; a < run.weights.arcs.length / 2; a++) arcs.set(run.weights.arcs[2 * a] * n + run.weights.arcs[2 * a + 1], a);
  const weight = (on, i, j) => (arcs.has(i * n + j) ? on[arcs.get(i * n + j)] : 0);
  return {
    place, edges, ribbons, nodes, weight,
    shade(values, color) {
      nodes.forEach((node, i) => {
        const core = node.querySelector('.core'), text = node.querySelector('text');
        const [red, green, blue] = values ? color(values[i]) : [];
        core.style.fill = values ? `rgb(${red} ${green} ${blue})` : '';
        if (text) text.style.fill = values ? (0.3 * red + 0.6 * green + 0.1 * blue > 140 ? '#111' : '#fff') : '';
      });
    },
    draw(on, scale = 1, now = null) {
      edges.forEach((edge, e) => {
        const [hear, heard] = [weight(on, edge.j, edge.i), weight(on, edge.i, edge.j)];  // by i from j, by j from i
        ribbons[e].setAttribute('d', hear + heard < 0.002 ? '' : ribbon(edge, spot, hear * scale * widest * 2, heard * scale * widest * 2));
        ribbons[e].setAttribute('data-weight', ((hear + heard) / 2).toFixed(3));
        ribbons[e].style.opacity = 0.3 + 0.7 * Math.min(1, hear + heard);
        const a = arcs.get((hear > heard ? edge.j * n + edge.i : edge.i * n + edge.j));
        const round = now && now.rounds > 1 && a !== undefined ? now.round[a] : null;
        ribbons[e].style.fill = round === null ? '' : roundColor(round);
        ribbons[e].setAttribute('data-round', round === null ? '' : round + 1);
      });
    },
  };
}

// The distance between the two nodes that are closest to each other.
function nearest(n, spot) {
  let least = SIDE;
  for (let i = 0; i < n && n <= 64; i++) for (let j = 0; j < i; j++) least = Math.min(least, Math.hypot(spot(i)[0] - spot(j)[0], spot(i)[1] - spot(j)[1]));
  return least;
}

// Edges of the graph and of every W on it, each once.
function pairs(scene, run) {
  const found = new Set();
  const add = list => { for (let k = 0; k < list.length; k += 2) found.add(Math.min(list[k], list[k + 1]) * scene.n + Math.max(list[k], list[k + 1])); };
  add(scene.edges);
  if (run.weights) add(run.weights.arcs);
  return [...found].sort((a, b) => a - b).map(key => [Math.floor(key / scene.n), key % scene.n]);
}

// A straight edge that would run through a third node takes a bend around it, towards the middle of the picture.
function bendOf(i, j, n, spot, radius) {
  const [ax, ay] = spot(i), [bx, by] = spot(j), length = Math.hypot(bx - ax, by - ay) || 1;
  for (let k = 0; k < n && n <= 64; k++) {
    if (k === i || k === j) continue;
    const [x, y] = spot(k), along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length ** 2;
    const off = Math.abs((bx - ax) * (ay - y) - (ax - x) * (by - ay)) / length;
    if (along > 0.02 && along < 0.98 && off < radius * 0.8) {
      const [mx, my] = [(ax + bx) / 2 - SIDE / 2, (ay + by) / 2 - SIDE / 2];
      return 2.2 * radius * (mx * (by - ay) - my * (bx - ax) < -1e-6 ? -1 : 1);
    }
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
  const thick = radius * 0.42, middle = radius - thick / 2, around = 2 * Math.PI * middle;
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
  group.append(svg('circle', { class: 'core', cx: x, cy: y, r: total ? radius - thick : radius * 0.75 }));
  const brief = scene.labels && scene.labels.every(label => label.length <= 3);
  if (radius >= 9) group.append(svg('text', { x, y, 'font-size': radius * (total ? 0.56 : 0.62), text: brief ? scene.labels[i] : i }));
  return group;
}

// Long names of nodes, each below, above or beside its node, where it covers the least, and inside of the picture.
function cityNames({ labels, n }, spot, radius) {
  if (!labels || n > 24 || labels.every(label => label.length <= 3)) return [];
  const boxes = [...Array(n).keys()].map(i => [...spot(i), radius, radius]);
  const covered = ([x, y, w, h]) => boxes.filter(([u, v, a, b]) => Math.abs(x - u) < w + a && Math.abs(y - v) < h + b).length;
  return labels.map((text, i) => {
    const [x, y] = spot(i), half = Math.min(SIDE / 2, 3.2 * text.length), side = half + radius + 4;
    const places = [[x, y + radius + 8], [x, y - radius - 8], [x + side, y], [x - side, y]]
      .map(([u, v]) => [Math.max(half, Math.min(SIDE - half, u)), v, half, 6]);
    const best = places.reduce((a, b) => (covered(b) < covered(a) ? b : a));
    boxes.push(best);
    return svg('text', { class: 'city', x: best[0], y: best[1], text });
  });
}

// The models as dots, two numbers of a sketch each, relative to their mean: dots that meet are models that agree.
function modelStrip(scene) {
  const height = 96;
  const dots = [...Array(scene.n).keys()].map(i => {
    const dot = svg('circle', { class: 'model', r: Math.max(2, Math.min(5.5, 60 / Math.sqrt(scene.n))) });
    const counts = scene.counts && scene.counts[i];
    if (counts) dot.style.fill = classColor(counts.indexOf(Math.max(...counts)), scene.classes.length);
    return dot;
  });
  const place = svg('svg', { class: 'strip', viewBox: `0 0 ${SIDE} ${height}`, role: 'img', 'aria-label': `The models of ${scene.n} nodes as dots; the closer they are, the more they agree` },
    svg('line', { class: 'grid', x1: SIDE / 2, x2: SIDE / 2, y1: 4, y2: height - 4 }), svg('line', { class: 'grid', x1: 8, x2: SIDE - 8, y1: height / 2, y2: height / 2 }), dots);
  return {
    place,
    draw({ xy }, size) {
      dots.forEach((dot, i) => {
        dot.setAttribute('cx', (SIDE / 2 + (SIDE / 2 - 14) * xy[2 * i] / size).toFixed(1));
        dot.setAttribute('cy', (height / 2 + (height / 2 - 8) * xy[2 * i + 1] / size).toFixed(1));
      });
    },
  };
}

// Ten colors that color-blind readers tell apart; more classes than that are a ramp.
const classColor = (k, classes) => (classes <= 10 ? `var(--k${k})` : `hsl(${250 - 210 * k / (classes - 1)} 55% ${35 + 35 * k / (classes - 1)}%)`);
