(() => {
  "use strict";
  const FILTERS = ["release", "cuda", "gpu", "isa"];
  const rows = [...document.querySelectorAll("tbody tr")].map((row) => ({ row, keys: row.dataset.k.split(" "), pythons: row.dataset.p.split(" "), name: row.cells[0].firstChild, full: row.cells[0].textContent, text: row.textContent.toLowerCase() }));
  const wanted = () => [...FILTERS, "python", "text"].map((id) => byId(id).value.trim());
  const show = () => {
    const [release, cuda, gpu, isa, python, text] = wanted();
    let count = 0;
    for (const one of rows) {
      const fits = [release, cuda, gpu, isa].every((value, i) => !value || one.keys[i] === value) && (!python || one.pythons.includes(python)) && text.toLowerCase().split(/\s+/).every((word) => one.text.includes(word));
      one.row.hidden = !fits;
      if (fits) count++;
      const name = python ? one.full.replace(/python\d+t?/, `python${python.replace(".", "")}`) : one.full;
      if (one.name.textContent !== name) one.name.textContent = name;
    }
    byId("count").textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} variants`;
    const words = new URLSearchParams([...FILTERS, "python", "text"].map((id) => [id, byId(id).value]).filter(([, value]) => value));
    history.replaceState(null, "", String(words) ? `#${words}` : location.pathname + location.search);
    if (gpu && isa) byId("name").value = `${gpu}-${isa}`;
  };
  for (const id of [...FILTERS, "python", "text"]) byId(id).addEventListener("input", show);
  for (const [id, value] of new URLSearchParams(location.hash.slice(1))) if (byId(id)) byId(id).value = value;
  show();

  // Why a name is offered, possible or not: the very function of `torchtailor matrix --why`.
  const why = async (name) => {
    const engine = await startEngine();
    try { return engine.explain(engine.matrix, name).text; } catch (error) { if (!error.message) throw error; return `${error.message} ${error.hint ?? ""}`.trim(); }
  };
  window.torchtailor = { why };
  byId("why").addEventListener("submit", (event) => { event.preventDefault(); why(byId("name").value).then((text) => { byId("because").textContent = text; }); });
})();
