// The commands name the address under which this page was opened.
for (const code of document.querySelectorAll("[data-command]")) {
  const line = code.dataset.command.replace("ADDRESS-OF-THIS-PAGE", () => location.href.replace(/[^/]*([?#].*)?$/, ""));
  code.textContent = line;
  code.closest(".command").append(copyButton(line, code.parentElement.getAttribute("aria-label") + " command"));
}
