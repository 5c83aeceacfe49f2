// How to make the runs again: command, configuration, versions.
function drawMaking() {
  const several = data.experiments.length > 1;
  show(at('making-body'), data.experiments.map((experiment, e) => el('div', { class: 'experiment' },
    several ? el('h3', { text: experiment.name }) : null,
    experiment.command ? [command(experiment.command, `command-${e}`)] : null,
    el('p', { class: 'note', text: experiment.how }),
    experiment.config ? el('details', {}, el('summary', { text: 'config.yaml' }), command(experiment.config, `config-${e}`)) : null,
    experiment.versions ? el('p', { class: 'note', text: `Made with ${experiment.versions}.` }) : null)));
  at('foot').textContent = `Made by mixwise ${data.version}. This page works offline: nothing is loaded from anywhere.`;
}

function command(text, id) {
  const copy = el('button', { type: 'button', class: 'quiet', id, text: 'Copy' });
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(copy.previousSibling);
      copy.textContent = 'Selected';
    }
    setTimeout(() => { copy.textContent = 'Copy'; }, 1600);
  });
  return el('div', { class: 'command' }, el('pre', { text }), copy);
}
