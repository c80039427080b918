"use strict";
(() => {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  const filters = [...document.querySelectorAll("[data-show]")];
  for (const button of filters) {
    button.addEventListener("click", () => {
      for (const other of filters) other.setAttribute("aria-pressed", String(other === button));
      for (const line of document.querySelectorAll(".proof li")) {
        line.hidden = Boolean(button.dataset.show) && !line.classList.contains(button.dataset.show);
      }
    });
  }
  for (const button of document.querySelectorAll(".command button")) {
    button.addEventListener("click", () => {
      const code = button.parentElement.querySelector("code");
      const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
      if (navigator.clipboard) {
        navigator.clipboard.writeText(code.textContent).then(done, () => select(code));
      } else {
        select(code);
      }
    });
  }
  // A page opened from a file may not write to the clipboard: the text is selected for the user to copy.
  function select(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }
})();
