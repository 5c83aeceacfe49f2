// The top of the page: title, story, figures; and the result tables.
function drawIntro() {
  const single = data.experiments.length === 1, oneFolder = data.experiments.every(({ folder }) => folder === data.experiments[0].folder);
  const parts = [el('h1', { text: data.title })];
  if (oneFolder && data.experiments[0].description) parts.push(el('p', { class: 'deck', text: data.experiments[0].description }));
  for (const experiment of data.experiments) {
    if (experiment.problems.length) {
      parts.push(el('div', { class: 'problems', role: 'note' },
        el('p', { text: `${data.running ? 'Not finished yet' : 'Missing or damaged'}${single ? '' : `: ${experiment.name}`}` }),
        el('ul', {}, experiment.problems.map(text => el('li', { text })))));
    }
    parts.push(el('p', { class: 'story' }, single ? null : el('b', { text: `${experiment.name}: ` }),
      experiment.story.map(([text, stressed]) => (stressed ? el('b', { text }) : text))));
    if (oneFolder && experiment.figures.length) {
      parts.push(el('dl', { class: 'figures' },
        experiment.figures.map(([name, value]) => el('div', {}, el('dt', { text: name }), el('dd', { text: value })))));
    }
  }
  show(at('intro'), parts);
}

function drawTables() {
  const several = data.experiments.length > 1;
  show(at('table'), data.experiments.map((experiment, e) => el('div', { class: 'experiment' },
    several ? el('h3', { text: experiment.name }) : null,
    experiment.rows.length ? el('div', { class: 'card' }, resultTable(experiment, e)) : null,
    el('p', { class: 'note', text: experiment.caption }))));
}

function resultTable(experiment, e) {
  const columns = [...experiment.metrics.map(metric => [metric.label, metric.higher]), ['Sent per node', false]];
  const sort = chosen.sort || { e, c: 0, down: columns[0][1] };
  const value = (row, c) => (c < experiment.metrics.length ? row.cells[c] && row.cells[c].mean : row.bytes);
  const rows = [...experiment.rows];
  if (sort && sort.e === e) {
    rows.sort((a, b) => {
      const [x, y] = [value(a, sort.c), value(b, sort.c)];
      return x == null ? 1 : y == null ? -1 : sort.down ? y - x : x - y;
    });
  }
  const head = columns.map(([label, higher], c) => {
    const on = sort && sort.e === e && sort.c === c;
    const turn = () => { chosen.sort = { e, c, down: on ? !sort.down : higher }; drawTables(); };
    return el('th', { scope: 'col', 'aria-sort': on ? (sort.down ? 'descending' : 'ascending') : 'none' },
      el('button', { type: 'button', id: `sort-${e}-${c}`, text: label, title: 'Sort', onclick: turn }));
  });
  const extent = range(experiment.rows.map(row => row.cells[0]));
  const line = row => el('tr', {},
    el('td', {}, swatch(row.variant), el('span', { class: 'name', text: row.short }),
      el('span', { class: 'what', text: row.note }), row.difference ? el('span', { class: 'what', text: row.difference }) : null,
      row.diverged ? el('span', { class: 'what', text: row.diverged }) : null),
    row.cells.map((cell, c) => el('td', { class: cell && cell.best ? 'best' : null, 'data-label': columns[c][0] },
      el('span', { text: cell ? cell.text : row.diverged ? 'diverged' : '–' }), c === 0 && cell && extent ? bar(cell, extent, row.variant) : null)),
    el('td', { 'data-label': 'Sent per node', text: row.bytes == null ? '–' : bytes(row.bytes) }));
  const references = rows.filter(row => row.reference);
  const body = [...rows.filter(row => !row.reference).map(line), references.length
    ? el('tr', { class: 'references' }, el('th', { scope: 'rowgroup', colspan: columns.length + 1, text: 'References: every node hears all others' }))
    : null, ...references.map(line)];
  return el('table', { class: 'result' }, el('caption', { class: 'said', text: `Results of ${experiment.name}` }),
    el('thead', {}, el('tr', {}, el('th', { scope: 'col', text: 'Variant' }), head)), el('tbody', {}, body));
}

function range(cells) {
  const there = cells.filter(Boolean);
  const ends = there.flatMap(({ mean, std }) => [mean - (std || 0), mean + (std || 0)]);
  return ends.length && Math.max(...ends) > Math.min(...ends) ? [Math.min(...ends), Math.max(...ends)] : null;
}

// Mean and deviation as a dot on a line.
function bar({ mean, std }, [low, high], v) {
  const x = value => 6 + 88 * (value - low) / (high - low);
  const { color, mark } = look(v);
  const line = svg('line', { x1: x(mean - (std || 0)), x2: x(mean + (std || 0)), y1: 8, y2: 8, 'stroke-width': 3, opacity: .4 });
  const dot = svg('path', { d: mark(x(mean), 8, 4) });
  line.style.stroke = color;
  dot.style.fill = color;
  return svg('svg', { class: 'bar', width: 100, height: 16, 'aria-hidden': 'true' },
    svg('line', { class: 'grid', x1: 6, x2: 94, y1: 8, y2: 8 }), line, dot);
}
