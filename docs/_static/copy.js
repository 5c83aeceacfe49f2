// A button on every block of code that copies its text; of a diff, the lines after the change.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const isDiff = block.parentElement.classList.contains("highlight-diff");
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.onclick = async () => {
      const lines = block.querySelector("pre").textContent.split("\n");
      const after = lines.filter((line) => !line.startsWith("-")).map((line) => line.slice(1));
      await navigator.clipboard.writeText((isDiff ? after : lines).join("\n"));
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    block.append(button);
  }
});
