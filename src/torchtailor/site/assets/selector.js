(() => {
  "use strict";
  const first = JSON.parse(byId("first").textContent);
  const EMBEDDED = /jetson|orin|xavier|thor|tegra|tx[12]|drive|agx/i;
  const PER_LIST = 40;  // rows of a list of suggestions

  // The compiled engine starts with the first question, or when the browser has nothing else to do.
  let engine = null;
  const parsed = () => (document.readyState === "loading" ? new Promise((done) => { addEventListener("DOMContentLoaded", done); }) : null);
  const start = async () => { await parsed(); return (engine ??= await startEngine()); };
  const unreadable = { recommendation: null, commands: [], size: null, line: "torchtailor recommend", cpu: "", problem: "The description of the machine in this link cannot be read.", hint: "Paste `torchtailor detect --json` again." };
  const answer = (query) => {
    try { return engine.to_json(engine.page_answer(engine.matrix, engine.from_json(query))); } catch (error) {
      if (!query.host && !query.pasted_cpu) throw error;
      return unreadable;
    }
  };
  const understand = (text) => engine.to_json(engine.understand(engine.values.catalog, text));
  window.torchtailor = { answer, understand, start: () => engine };

  // State: the form's fields, which the address carries after its #.
  const blank = () => ({ gpus: [{ name: "", count: 1 }], driver: "", cuda: "", jetpack: "", cpu: "", system: "linux", python: "", manager: "torchtailor", workload: "general", release: "", method: "", host: null, pasted_cpu: null });
  let state = blank();
  const SIMPLE = ["driver", "cuda", "jetpack", "cpu", "system", "python", "manager", "workload", "release", "method"];
  const packed = (value) => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value)))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const unpacked = (text) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0))));
  const slim = ({ tools, torches, ...host }) => ({ ...host, tools: [], torches: [] });

  const toHash = () => {
    const words = new URLSearchParams(), standard = blank();
    for (const { name, count } of state.gpus) if (name) words.append("gpu", count > 1 ? `${count}x ${name}` : name);
    for (const key of SIMPLE) if (state[key] !== standard[key]) words.set(key, state[key]);
    if (state.host) words.set("host", packed(slim(state.host)));
    if (state.pasted_cpu) words.set("flags", packed(state.pasted_cpu));
    return words.toString();
  };
  const offers = (name, value) => [...byId(name).options].some((one) => one.value === value);
  const fromHash = (text) => {
    const words = new URLSearchParams(text), read = blank();
    const gpus = words.getAll("gpu").map((one) => {
      const found = /^(\d{1,2}) ?[x×] ?(.*)$/s.exec(one);
      return found && found[2].trim() ? { name: found[2], count: Math.min(16, Math.max(1, Number(found[1]))) } : { name: one, count: 1 };
    });
    if (gpus.length) read.gpus = gpus;
    for (const key of SIMPLE) if (words.has(key)) read[key] = words.get(key);
    for (const key of ["system", "workload", "manager", "jetpack", "method"]) if (!offers(key, read[key])) read[key] = blank()[key];
    try { if (words.has("host")) read.host = unpacked(words.get("host")); } catch { read.host = null; }
    try { if (words.has("flags")) read.pasted_cpu = unpacked(words.get("flags")); } catch { read.pasted_cpu = null; }
    return read;
  };
  const isState = (hash) => !hash || hash.includes("=");  // and not a place of the page, such as #answer
  const query = () => ({
    gpus: state.gpus.flatMap(({ name, count }) => (name.trim() ? Array(count).fill(name.trim()) : [])),
    cpu: state.cpu.trim(), driver: state.driver.trim(), cuda: state.cuda.trim(), jetpack: state.jetpack, system: state.system,
    python: state.python, workload: state.workload, release: state.release, method: state.method,
    host: state.host, pasted_cpu: state.cpu.trim() ? null : state.pasted_cpu,
  });

  // A field with suggestions, after the ARIA pattern of a combobox with a list.
  let combos = 0;
  const combo = (input, rows, chosen) => {
    const id = `options-${++combos}`;
    const list = el("ul", { class: "options", id, role: "listbox", "aria-label": "Suggestions", hidden: true });
    input.after(list);
    for (const [key, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id })) input.setAttribute(key, value);
    let at = -1, shown = [];
    const close = () => { list.hidden = true; at = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
    const mark = (next) => {
      at = next;
      [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
      if (at >= 0) { input.setAttribute("aria-activedescendant", list.children[at].id); list.children[at].scrollIntoView({ block: "nearest" }); }
      else input.removeAttribute("aria-activedescendant");
    };
    const take = (i) => { input.value = shown[i][0]; close(); chosen(input.value); };
    const open = async () => {
      await start();
      if (document.activeElement !== input) return;
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const scored = [];
      for (const row of engine.lists[rows]) {
        const text = row[0].toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
        const first = words.length ? text.split(/[\s-]+/).findIndex((part) => part.startsWith(words[0])) : 0;
        scored.push([first < 0 ? 9 : first, text.length, row]);
      }
      if (words.length) scored.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      shown = scored.slice(0, PER_LIST).map(([, , row]) => row);
      list.replaceChildren(...shown.map(([name, about], i) => el("li", { id: `${id}-${i}`, role: "option", "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); take(i); } }, el("span", {}, name), el("span", {}, about))));
      list.hidden = !shown.length;
      input.setAttribute("aria-expanded", String(!list.hidden));
      at = -1;
    };
    input.addEventListener("input", open);
    input.addEventListener("click", () => { if (list.hidden) open(); });
    input.addEventListener("blur", close);
    input.addEventListener("keydown", async (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        if (list.hidden) await open();
        if (shown.length) mark(event.key === "ArrowDown" ? (at + 1) % shown.length : (at <= 0 ? shown.length : at) - 1);
      } else if (event.key === "Enter") {
        event.preventDefault();
        if (!list.hidden && at >= 0) take(at);
        else { close(); chosen(input.value); }
      } else if (event.key === "Escape" && !list.hidden) { event.stopPropagation(); close(); }
    });
  };

  // The form.
  byId("driver").addEventListener("focus", async () => byId("drivers").replaceChildren(...(await start()).lists.drivers.map(({ key, label }) => el("option", { value: key, label }))), { once: true });
  const drawGpus = () => {
    byId("gpus").replaceChildren(...state.gpus.map((row, i) => {
      const input = el("input", { id: `gpu-${i}`, class: "gpu", value: row.name, autocomplete: "off", spellcheck: false, placeholder: i ? "another GPU" : "RTX 4090, H100, none", "aria-label": `GPU ${i + 1}` });
      const count = el("input", { type: "number", min: 1, max: 16, value: row.count, "aria-label": `How many of GPU ${i + 1}` });
      const remove = el("button", { type: "button", class: "button remove", "aria-label": `Remove GPU ${i + 1}`, onclick: () => { state.gpus.splice(i, 1); drawGpus(); changed(); byId("gpu-0").focus(); } }, "×");
      const box = el("div", { class: "combo" }, input);
      const change = () => { row.name = input.value; leavePasted(); changed(); };
      combo(input, "products", change);
      input.addEventListener("input", () => { row.name = input.value; leavePasted(); soon(); });
      count.addEventListener("input", () => { row.count = Math.min(16, Math.max(1, Math.trunc(Number(count.value)) || 1)); leavePasted(); changed(); });
      return el("div", { class: "gpu-row" }, box, count, remove);
    }));
  };
  const leavePasted = () => { state.host = null; };
  byId("add-gpu").addEventListener("click", () => { state.gpus.push({ name: "", count: 1 }); drawGpus(); byId(`gpu-${state.gpus.length - 1}`).focus(); });
  combo(byId("cpu"), "cpus", (value) => { state.cpu = value; leavePasted(); changed(); });
  const CHOICES = ["python", "manager", "workload", "release", "method"];  // of the user, whatever the machine is
  for (const key of SIMPLE) byId(key).addEventListener("input", () => { state[key] = byId(key).value; if (!CHOICES.includes(key)) leavePasted(); soon(); });
  const draw = () => {
    drawGpus();
    for (const key of SIMPLE) byId(key).value = state[key];
    byId("more").open = Boolean(state.release || state.method || state.workload !== "general");
  };

  // Paste: what was understood fills the form, where it can be corrected.
  const list = (rows) => el("ul", {}, rows.map((row) => el("li", {}, row)));
  const said = (rows, lead) => { const box = byId("understood"); box.hidden = false; box.replaceChildren(el("strong", {}, lead), list(rows.map(prose))); };
  const systemOf = ({ os_id, libc, libc_version, wsl }) => {
    if (wsl) return "wsl";
    if (os_id === "windows" || os_id === "macos") return os_id;
    if (libc === "musl") return "musl";
    return libc === "glibc" && Number(libc_version?.split(".")[1]) < 28 ? "old" : "linux";
  };
  const pasted = async (text) => {
    if (!text.trim()) { byId("understood").hidden = true; return; }
    await start();
    let host = null;
    try { const found = JSON.parse(text); if (found && typeof found === "object" && "cpu" in found) host = found; } catch { /* not JSON */ }
    const kept = state.manager;
    if (host) {
      const found = answer({ host: slim(host) });
      if (found.problem) { said([found.problem, found.hint].filter(Boolean), "Not understood:"); return; }
      state = { ...blank(), manager: kept, host: slim(host) };
      const counts = new Map();
      for (const gpu of host.gpus ?? []) counts.set(gpu.name, (counts.get(gpu.name) ?? 0) + 1);
      if (counts.size) state.gpus = [...counts].map(([name, count]) => ({ name, count }));
      state.driver = host.driver?.version ?? "";
      state.cuda = host.driver?.cuda ?? "";
      state.system = systemOf(host.system);
      if (offers("jetpack", host.tegra?.jetpack)) state.jetpack = host.tegra.jetpack;
      state.pasted_cpu = host.cpu;
      said([`A description of torchtailor detect: ${found.recommendation.machine}.`, "It is used as it is until you change the machine in the form."], "Understood:");
    } else {
      const found = understand(text), rows = [];
      state = { ...state, host: null };
      if (found.gpus.length) {
        const counts = new Map();
        for (const name of found.gpus) counts.set(name, (counts.get(name) ?? 0) + 1);
        state.gpus = [...counts].map(([name, count]) => ({ name, count }));
        rows.push(`GPU: ${[...counts].map(([name, count]) => (count > 1 ? `${count}x ${name}` : name)).join(", ")}`);
      }
      if (found.driver) { state.driver = found.driver; rows.push(`Driver: ${found.driver}`); }
      if (found.cuda) { state.cuda = found.cuda; rows.push(`CUDA that the driver supports: ${found.cuda}`); }
      if (found.pasted_cpu) { state.pasted_cpu = found.pasted_cpu; state.cpu = ""; rows.push(`CPU: ${found.pasted_cpu.name} (${found.pasted_cpu.microarchitecture}, ${found.pasted_cpu.flags.length} flags)`); }
      if (found.cpu) { state.cpu = found.cpu; state.pasted_cpu = null; rows.push(`CPU: ${found.cpu}`); }
      if (found.jetpack && !state.gpus.some(({ name }) => EMBEDDED.test(name))) state.gpus = [{ name: "Jetson", count: 1 }];
      if (found.jetpack) { state.jetpack = found.jetpack; rows.push(`JetPack: ${found.jetpack}`); }
      if (found.python && offers("python", found.python)) { state.python = found.python; rows.push(`Python: ${found.python}`); }
      if (found.system) { state.system = found.system; rows.push(`System: ${[...byId("system").options].find((one) => one.value === found.system).label}`); }
      said([...rows, ...found.notes], rows.length ? "Understood; correct it here if it is wrong:" : found.notes.length > 1 || /means/.test(found.notes[0]) ? "What it says:" : "Not understood:");
    }
    draw();
    changed();
  };
  byId("paste").addEventListener("input", () => { clearTimeout(pasted.timer); pasted.timer = setTimeout(() => pasted(byId("paste").value), 250); });

  // The answer.
  const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(2)} GB`;
  const METHODS = { wheel: "official wheel, cut to size", source: "built from source", nix: "built with Nix" };
  const section = (title, ...content) => el("div", { class: "section" }, el("h2", {}, title), ...content);
  const picks = (rows) => el("ul", { class: "points" }, rows.map((one) => el("li", {}, el("code", {}, one.variant), ` (${one.method}): `, ...prose(one.reasons.join(" ")))));
  const drawSize = (size) => {
    const row = (name, bytes, kind) => el("div", {}, el("span", {}, name), el("span", { class: "track" }, el("span", { class: kind, style: `width:${(100 * bytes) / size.stock}%` })), el("span", { class: "number" }, gigabytes(bytes)));
    const what = `Installed libraries of PyTorch ${size.pytorch} (${size.build}) cut for ${size.gpu}`;
    return section("Size before and after",
      el("div", { class: "size" }, row("as shipped", size.stock, "before"), row("cut", size.cut, ""), row("cut, --nvidia", size.nvidia, "")),
      el("p", { class: "small-text" }, prose(size.exact ? `${what}, as measured.` : `${what}: the nearest build that was measured. Yours was not; \`torchtailor tailor --dry-run\` says its size.`)));
  };
  const commandBox = (text, title, id = "") => el("div", { class: "command" }, el("pre", { tabIndex: 0, role: "region", "aria-label": title }, el("code", { id }, text)), copyButton(text, title));
  const drawCommands = (commands) => {
    const wanted = commands.some((one) => one.key === state.manager) ? state.manager : commands[0].key;
    const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Ways to get it" });
    const panels = commands.map((one) => el("div", { class: "panel", role: "tabpanel", id: `panel-${one.key}`, "aria-labelledby": `tab-${one.key}`, hidden: one.key !== wanted },
      el("p", { class: "print-only", "aria-hidden": "true" }, one.title), commandBox(one.text, one.title), el("p", { class: "small-text" }, prose(one.about))));
    const choose = (key, focus) => {
      for (const tab of tabs.children) { const on = tab.dataset.key === key; tab.setAttribute("aria-selected", String(on)); tab.tabIndex = on ? 0 : -1; if (on && focus) tab.focus(); }
      panels.forEach((panel, i) => { panel.hidden = commands[i].key !== key; });
      state.manager = key;
      byId("manager").value = key;
      remember();
    };
    tabs.append(...commands.map((one, i) => el("button", { type: "button", role: "tab", id: `tab-${one.key}`, "data-key": one.key, "aria-controls": `panel-${one.key}`, "aria-selected": String(one.key === wanted), tabIndex: one.key === wanted ? 0 : -1,
      onclick: () => choose(one.key), onkeydown: (event) => {
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1 + commands.length, Home: 0, End: commands.length - 1 }[event.key];
        if (next !== undefined) { event.preventDefault(); choose(commands[next % commands.length].key, true); }
      } }, one.title)));
    return section("Get it", tabs, ...panels);
  };
  const drawAnswer = (found) => {
    const parts = [];
    const same = section("The same in a terminal", commandBox(found.line, "torchtailor recommend", "line"),
      found.line.includes("machine.json") ? el("p", { class: "small-text" }, prose("machine.json is what `torchtailor detect --json` writes on that machine.")) : null);
    const r = found.recommendation;
    if (!r) {
      const alone = () => { state.gpus = [{ name: "", count: 1 }]; leavePasted(); draw(); changed(); };
      parts.push(el("div", { class: "verdict" }, el("p", { class: "eyebrow none" }, "No answer for this"), el("p", { class: "headline" }, prose(found.problem)), el("p", {}, prose(found.hint)),
        /GPU/.test(found.problem) && query().gpus.length ? el("p", {}, el("button", { type: "button", class: "button small", onclick: alone }, "Answer for the CPU alone")) : null), same);
      return { parts, text: `${found.problem} ${found.hint}`, short: "No answer for this" };
    }
    const best = r.best;
    const name = best ? `PyTorch ${best.pytorch} ${best.cuda ? `with CUDA ${best.cuda}` : "for the CPU"}` : "torchtailor has no build for this";
    const facts = best ? [`Python ${best.python}`, METHODS[best.method]] : [];
    parts.push(el("div", { class: "verdict" },
      best ? el("p", { class: `eyebrow${best.method === "wheel" ? "" : " build"}` }, best.method === "wheel" ? "Runs on this machine" : "Runs on this machine, once it is compiled") : el("p", { class: "eyebrow none" }, "No variant runs on this machine"),
      el("p", { class: "headline", id: "headline" }, name),
      facts.length ? el("ul", { class: "facts" }, facts.map((fact) => el("li", {}, fact)), el("li", {}, el("code", { id: "variant" }, best.variant))) : null,
      el("p", { class: "machine" }, found.cpu.startsWith("Not named") ? r.machine.replace(/^x86_64_v3 \(x86_64\)/, "Any x86-64 CPU with AVX2") : r.machine)));
    if (r.notes.length) parts.push(el("ul", { class: "notes" }, r.notes.map((note) => el("li", {}, prose(note)))));
    if (found.commands.length) parts.push(drawCommands(found.commands));
    if (best) parts.push(section("Why", el("ul", { class: "points", id: "reasons" }, best.reasons.map((reason) => el("li", {}, prose(reason))))));
    if (r.upgrades.length) parts.push(section("What to change to get more", el("ul", { class: "points better", id: "upgrades" }, r.upgrades.map((one) => el("li", {}, prose(one.text))))));
    if (r.per_gpu.length) parts.push(section(r.best && r.best.gpus.length > 1 ? "Or an environment for each GPU" : "Per GPU", picks(r.per_gpu)));
    if (r.alternatives.length) parts.push(section("What can be done", el("ul", { class: "points", id: "alternatives" }, r.alternatives.map((one) => el("li", {}, ...prose(one.text), one.toml ? el("pre", { class: "toml", tabIndex: 0, "aria-label": "torchtailor.toml" }, el("code", {}, one.toml)) : null)))));
    if (found.size) parts.push(drawSize(found.size));
    if (r.rejected.length) parts.push(section("Why not the others", el("ul", { class: "points", id: "rejected" }, r.rejected.map((one) => el("li", {}, el("b", {}, one.what), ": ", ...prose(one.reason))))));
    if (r.other_variants.length) parts.push(section("Also runs", picks(r.other_variants)));
    if (r.compiling) parts.push(section("Compiling for this CPU", el("p", { id: "compiling" }, prose(r.compiling))));
    parts.push(same);
    return { parts, text: `${name}. ${facts.join(", ")}`, short: name };
  };

  const remember = () => { const hash = toHash(); history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search); };
  const readCpu = (found) => {
    const line = byId("cpu-read");
    if (state.pasted_cpu && !state.cpu) line.textContent = `From the paste: ${state.pasted_cpu.name}`;
    else line.textContent = found.cpu;
  };
  const FIRST_PARTS = 3;  // verdict, notes and commands: what a screen shows at once
  const idle = window.requestIdleCallback ?? ((run) => setTimeout(run, 200));
  const nextFrame = (run) => requestAnimationFrame(() => setTimeout(run));
  const render = (found, staged = false) => {
    const { parts, text, short } = drawAnswer(found);
    const box = el("div", { class: "answer-parts" }, staged ? parts.slice(0, FIRST_PARTS) : parts);
    byId("result").replaceChildren(box);
    if (staged) idle(() => box.append(...parts.slice(FIRST_PARTS)), { timeout: 1000 });
    byId("said").textContent = text;
    byId("jump").replaceChildren(el("span", {}, short), el("b", {}, "See the answer ↓"));
    readCpu(found);
  };
  const show = async () => {
    const embedded = state.gpus.some(({ name }) => EMBEDDED.test(name));
    byId("jetpack-field").hidden = !embedded;
    if (!embedded) state.jetpack = "";
    byId("cuda-field").hidden = state.system !== "wsl";
    if (engine === null) await start();
    render(answer(query()));
    byId("answer").dataset.ready = "yes";
  };
  const changed = () => { clearTimeout(soon.timer); remember(); show(); };
  const soon = () => { clearTimeout(soon.timer); soon.timer = setTimeout(changed, 150); };
  byId("link").addEventListener("click", async () => { remember(); byId("link").textContent = (await copyText(location.href)) ? "Link copied" : "Copy the address"; setTimeout(() => { byId("link").textContent = "Copy link to this answer"; }, 1500); });
  byId("reset").addEventListener("click", () => { state = blank(); byId("paste").value = ""; byId("understood").hidden = true; draw(); changed(); byId("gpu-0").focus(); });
  addEventListener("hashchange", () => {
    const hash = location.hash.slice(1);
    if (!isState(hash)) return;
    state = fromHash(hash);
    draw();
    show();
  });

  // What the browser itself says of the GPU and the system: a hint, taken only when asked.
  const adapterInfo = async () => { try { return (await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" }))?.info ?? {}; } catch { return {}; } };
  const renderer = () => {
    try {
      const gl = document.createElement("canvas").getContext("webgl", { powerPreference: "high-performance" });
      const extension = gl?.getExtension("WEBGL_debug_renderer_info");
      return gl?.getParameter(extension ? extension.UNMASKED_RENDERER_WEBGL : gl.RENDERER) ?? "";
    } catch { return ""; }
  };
  const hint = async () => {
    const info = await adapterInfo(), word = (value) => (typeof value === "string" ? value : "");
    const named = [word(info.description), word(info.device), word(renderer())];
    const gpu = engine.browser_gpu(engine.values.catalog, named, word(info.vendor), word(info.architecture));
    const platform = navigator.userAgentData?.platform || navigator.platform || "";
    const system = /^win/i.test(platform) ? "windows" : /^mac/i.test(platform) ? "macos" : "";
    const words = [gpu && (/^[\d.]+$/.test(gpu) ? `a GPU of compute capability ${gpu}` : gpu), { windows: "Windows", macos: "macOS" }[system]].filter(Boolean);
    if (!words.length || state.host) return;
    byId("hint").replaceChildren(el("span", {}, `This browser says: ${words.join(", ")}.`), el("button", { type: "button", class: "button small", onclick: () => {
      if (gpu) state.gpus = [{ name: gpu, count: 1 }];
      if (system) state.system = system;
      leavePasted();
      draw();
      changed();
    } }, "Use it"));
  };

  // A narrow screen shows the form first: a bar at its foot leads to the answer.
  const watch = () => new IntersectionObserver(([entry]) => { byId("jump").hidden = entry.isIntersecting; }, { rootMargin: "0px 0px -25% 0px" }).observe(byId("answer"));
  byId("jump").addEventListener("click", () => { byId("answer").scrollIntoView(); byId("answer").focus({ preventScroll: true }); });

  // The first view needs no engine: its answer was written with the page.
  const linked = location.hash.length > 1 && isState(location.hash.slice(1));
  state = linked ? fromHash(location.hash.slice(1)) : { ...blank(), gpus: [{ name: first.example, count: 1 }] };
  draw();
  if (!linked) render(first.answer, true);
  byId("waiting")?.removeAttribute("hidden");
  const awake = async () => { watch(); await start(); if (linked) await show(); byId("answer").dataset.ready = "yes"; hint(); };
  addEventListener("DOMContentLoaded", () => (linked ? nextFrame(awake) : nextFrame(() => idle(awake, { timeout: 3000 }))));
})();
