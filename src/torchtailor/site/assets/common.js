const el = (tag, properties = {}, ...children) => {
  const one = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) one.addEventListener(key.slice(2), value);
    else if (key === "class") one.className = value;
    else if (key in one && key !== "list" && key !== "role" && !key.startsWith("aria")) one[key] = value;
    else one.setAttribute(key, value);
  }
  one.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return one;
};
const byId = (id) => document.getElementById(id);

// Light and dark: the system's choice until the button was used.
const storage = (() => { try { return window.localStorage; } catch { return null; } })();
const theme = (wanted) => {
  if (wanted) document.documentElement.dataset.theme = wanted;
  const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  byId("theme").textContent = dark ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
  return dark;
};
theme(storage?.getItem("torchtailor-theme"));
byId("theme").addEventListener("click", () => {
  const now = byId("theme").textContent.toLowerCase();
  storage?.setItem("torchtailor-theme", now);
  theme(now);
});

const copyText = async (text) => {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* an old browser, or no permission */ }
  const field = el("textarea", { value: text, class: "visually-hidden" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
};
const copyButton = (text, what) => el("button", {
  type: "button", class: "button small copy", "aria-label": `Copy ${what}`,
  onclick: async (event) => {
    const button = event.currentTarget;
    button.textContent = (await copyText(text)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  },
}, "Copy");

// Sentences with `code` in them.
const prose = (text) => text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

// The compiled functions: unpacked and run when the first question is asked, so that the page is drawn before.
const startEngine = (() => {
  let starting = null;
  const start = async () => {
    const packed = Uint8Array.from(atob(byId("engine").textContent), (sign) => sign.charCodeAt(0));
    const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
    const [code, data, lists] = text.split("\0");
    document.head.append(el("script", { textContent: code }));
    const program = $start(JSON.parse(data));
    return { ...program, lists: JSON.parse(lists), matrix: program.Matrix(program.values.catalog) };
  };
  return () => (starting ??= start());
})();
