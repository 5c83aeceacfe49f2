// Small helpers around the DOM. All text goes through textContent: nothing a user wrote is ever parsed as HTML.
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'text') node.textContent = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter(child => child != null));
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const at = id => document.getElementById(id);

// Replace the content of an element without losing the keyboard focus.
function show(place, ...children) {
  const focused = document.activeElement;
  const id = focused && place.contains(focused) ? focused.id : null;
  place.replaceChildren(...children.flat().filter(child => child != null));
  if (id && at(id)) at(id).focus({ preventScroll: true });
}

function segments(label, id, choices, chosen, choose) {
  const buttons = choices.map(([value, text]) => el('button', {
    type: 'button', id: `${id}-${value}`, 'aria-pressed': String(value === chosen), text, onclick: () => choose(value),
  }));
  return el('div', { class: 'control' }, el('span', { id: `${id}-label`, text: label }),
    el('div', { class: 'segments', role: 'group', 'aria-labelledby': `${id}-label` }, buttons));
}

function menu(label, id, choices, chosen, choose) {
  const options = choices.map(([value, text]) => el('option', { value, text, selected: String(value) === String(chosen) }));
  const select = el('select', { id, onchange: event => choose(event.target.value) }, options);
  return el('div', { class: 'control' }, el('label', { for: id, text: label }), select);
}

function numbersTable(caption, head, rows) {
  return el('table', {}, el('caption', { class: 'said', text: caption }),
    el('thead', {}, el('tr', {}, head.map(text => el('th', { scope: 'col', text })))),
    el('tbody', {}, rows.map(row => el('tr', {}, row.map(text => el('td', { text }))))));
}

// The one tooltip of the page.
const tip = {
  show(x, y, title, rows) {
    const box = at('tip');
    box.replaceChildren(el('b', { text: title }), ...rows.map(([name, value, mark]) =>
      el('div', { class: 'row' }, el('span', {}, mark, name), el('span', { text: value }))));
    const { width, height } = box.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? Math.max(8, x - width - 16) : x + 16;
    box.style.left = `${Math.min(left, Math.max(8, innerWidth - width - 8))}px`;
    box.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - height - 8))}px`;
    box.style.visibility = 'visible';
  },
  hide() { at('tip').style.visibility = 'hidden'; },
};
