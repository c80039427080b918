// Tables that sort by a click on a heading.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!head || !event.target.closest("button")) return;
    const down = head.getAttribute("aria-sort") === "ascending", at = head.cellIndex;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[at].dataset.key ?? row.cells[at].textContent;
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const rows = [...body.rows].map((row) => [key(row), row]).sort((a, b) => (down ? -1 : 1) * compare(a[0], b[0]));
    body.append(...rows.map(([, row]) => row));
  });
}
