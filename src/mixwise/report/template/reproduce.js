// How to reproduce the runs: command, configuration, versions.
const AGAIN = 'The configuration below is itself a recipe: save it as config.yaml and call mixwise run config.yaml. '
  + 'The same seeds give the same records, bit for bit, on the same machine with the same versions.';
const AGAIN_PYTHON = 'The configuration below describes Python objects: call the script again, with resume=True to continue. '
  + 'The same seeds give the same records, bit for bit, on the same machine with the same versions.';

function drawReproduce() {
  const folders = data.experiments.filter(({ folder }, e) => data.experiments.findIndex(other => other.folder === folder) === e);
  show(at('reproduce-body'), folders.map((experiment, e) => el('div', { class: 'experiment' },
    folders.length > 1 ? el('h3', { text: experiment.folder }) : null,
    experiment.command ? [command(experiment.command, `command-${e}`)] : null,
    el('p', { class: 'note', text: experiment.config ? (experiment.python ? AGAIN_PYTHON : AGAIN) : 'config.yaml is missing, so the command is not known.' }),
    experiment.config ? el('details', {}, el('summary', { text: 'config.yaml' }), command(experiment.config, `config-${e}`)) : null,
    experiment.versions ? el('p', { class: 'note', text: `Made with ${experiment.versions}.` }) : null)));
  at('foot').textContent = `Made with mixwise ${data.version}. This page works offline: it loads nothing from the network.`;
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
