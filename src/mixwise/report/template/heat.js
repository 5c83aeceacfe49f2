// W as a heat map: rows send, columns receive.
function heatMap(n) {
  const canvas = el('canvas', { width: n, height: n });
  const place = el('div', { class: 'heat', role: 'img', 'aria-label': 'The mixing matrix as a heat map; its numbers are below' }, canvas);
  const high = el('span'), strip = el('i');
  const scale = el('div', { class: 'heat-side scale', 'aria-hidden': 'true' }, el('span', { text: '0' }), strip, high);
  return {
    place, scale,
    draw(W, top) {
      const shades = ramp(), context = canvas.getContext('2d'), image = context.createImageData(n, n);
      for (let e = 0; e < n * n; e++) {
        const [r, g, b] = shades(Math.sqrt(Math.max(0, Math.min(1, W[e] / top))));
        image.data.set([r, g, b, 255], 4 * e);
      }
      context.putImageData(image, 0, 0);
      high.textContent = significant(top, 2);
      const stops = [0, 0.04, 0.16, 0.36, 0.64, 1].map(t => `rgb(${shades(Math.sqrt(t)).join()}) ${100 * t}%`);
      strip.style.background = `linear-gradient(90deg, ${stops.join()})`;
    },
    cell(event) {
      const area = canvas.getBoundingClientRect();
      const i = Math.floor(n * (event.clientY - area.top) / area.height), j = Math.floor(n * (event.clientX - area.left) / area.width);
      return i >= 0 && i < n && j >= 0 && j < n ? [i, j] : null;
    },
  };
}

// From the color of the paper to a strong one, lightness rising or falling all the way: gray readers see the same order.
function ramp() {
  const dark = document.documentElement.dataset.theme === 'dark';
  const stops = dark ? [[27, 30, 36], [23, 62, 92], [20, 118, 140], [120, 190, 150], [250, 235, 160]]
    : [[255, 255, 255], [214, 232, 220], [120, 187, 190], [38, 110, 156], [18, 40, 92]];
  return t => {
    const place = Math.min(stops.length - 1.001, t * (stops.length - 1)), k = Math.floor(place);
    return stops[k].map((c, axis) => Math.round(c + (stops[k + 1][axis] - c) * (place - k)));
  };
}
