"use strict";
// Draws the tree of sizes: tiles are buttons, so that keyboard and screen reader need nothing of their own.
(() => {
  const box = document.getElementById("treemap");
  if (!box) return;
  const tree = JSON.parse(document.getElementById("data").textContent).tree;
  const path = document.getElementById("treemap-path");
  const rows = document.getElementById("treemap-rows");
  const where = [tree];

  const human = (size) => {
    let value = Math.abs(size);
    for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
      if (value < 999.5 || unit === "TB") return (unit === "B" ? value.toFixed(0) : value.toPrecision(3)) + " " + unit;
      value /= 1000;
    }
  };
  const change = (node) => {
    if (node.old === undefined || node.old === node.size) return "";
    if (!node.old) return "new";
    return (node.size > node.old ? "+" : "−") + human(node.size - node.old);
  };
  const said = (node, whole) => {
    const share = whole ? (100 * node.size / whole).toFixed(1) + " %" : "";
    return [node.name, human(node.size), share, change(node)].filter(Boolean).join(", ");
  };

  // A name goes on in the next line where its words end.
  function write(element, name) {
    name.split(/(?<=::|[a-z0-9][_./-])(?=\w)|(?<=[a-z])(?=[A-Z])/).forEach((part, index) => {
      if (index) element.append(document.createElement("wbr"));
      element.append(part);
    });
  }
  const overflows = (element) =>
    element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight;

  // Squarified: a row of tiles is filled while that makes its worst tile squarer.
  function layout(nodes, x, y, width, height) {
    const placed = [];
    const total = nodes.reduce((sum, node) => sum + node.size, 0);
    if (!total) return placed;
    const scale = width * height / total;
    let rest = nodes.slice();
    while (rest.length) {
      const side = Math.min(width, height);
      const worst = (row, area) => Math.max(...row.map((node) => {
        const other = node.size * scale / (area / side);
        const thick = area / side;
        return Math.max(other / thick, thick / other);
      }));
      let row = [], area = 0;
      for (const node of rest) {
        const more = [...row, node], larger = area + node.size * scale;
        if (row.length && worst(more, larger) > worst(row, area)) break;
        row = more;
        area = larger;
      }
      const thick = area / side;
      let along = 0;
      for (const node of row) {
        const long = node.size * scale / thick;
        placed.push(width >= height
          ? { node, x, y: y + along, width: thick, height: long }
          : { node, x: x + along, y, width: long, height: thick });
        along += long;
      }
      if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
      rest = rest.slice(row.length);
    }
    return placed;
  }

  function open(node) {
    where.push(node);
    draw(true);
  }

  function draw(moved) {
    const node = where[where.length - 1];
    const children = (node.children || []).filter((child) => child.size > 0);
    const width = box.clientWidth, height = Math.max(320, Math.min(620, width * 0.6));
    box.style.height = height + "px";
    box.replaceChildren();
    const nested = [], tiles = [], patches = [];
    for (const tile of layout(children, 0, 0, width, height)) {
      if (tile.width < 2 || tile.height < 2) continue;
      const small = Math.min(tile.width, tile.height) < 25;  // nobody hits it; the table opens it
      const leaf = small || !(tile.node.children && tile.node.children.length);
      const element = document.createElement(leaf ? "div" : "button");
      if (leaf) element.setAttribute("role", "img"); else element.type = "button";
      element.className = "tile " + (tile.node.colour || "host") + (small ? " tiny" : "");
      if (leaf) element.setAttribute("aria-label", said(tile.node, node.size));
      element.title = said(tile.node, node.size);
      element.style.cssText =
        `left:${tile.x}px;top:${tile.y}px;width:${Math.max(1, tile.width - 1)}px;height:${Math.max(1, tile.height - 1)}px`;
      const shown = document.createElement("span");  // for the eye
      if (tile.width > 30 && tile.height > 18) write(shown, tile.node.name.split("/").pop());
      if (tile.width > 70 && tile.height > 36) {
        const size = document.createElement("small");
        size.textContent = human(tile.node.size) + (change(tile.node) ? " (" + change(tile.node) + ")" : "");
        shown.append(size);
      }
      element.append(shown);
      if (!leaf) {  // what is drawn in it is not read; its name is
        shown.setAttribute("aria-hidden", "true");
        const name = document.createElement("span");
        name.className = "read";
        name.textContent = said(tile.node, node.size) + "; open";
        element.append(name);
        element.addEventListener("click", () => open(tile.node));
        if (tile.width > 60 && tile.height > 60) {
          element.classList.add("nested");
          nested.push({ tile, element, shown });
        }
      }
      tiles.push({ element, shown });
      box.append(element);
    }
    // Half a name is another name: what does not fit is left to the title and to the table.
    for (const { shown } of tiles.filter(({ element }) => overflows(element))) shown.textContent = "";
    // Parts begin under the name, however many lines it takes.
    for (const one of nested) one.top = one.shown.offsetTop + one.shown.offsetHeight + 2;
    for (const { tile, element, shown, top } of nested) {
      const inner = tile.node.children.filter((child) => child.size > 0);
      for (const part of layout(inner, 2, top, tile.width - 6, Math.max(0, tile.height - top - 4))) {
        if (part.width < 2 || part.height < 2) continue;
        const patch = document.createElement("span");
        patch.className = "patch " + (part.node.colour || "host");
        patch.style.cssText =
          `left:${part.x}px;top:${part.y}px;width:${Math.max(1, part.width - 1)}px;height:${Math.max(1, part.height - 1)}px`;
        if (part.width > 30 && part.height > 16) write(patch, part.node.name.split("/").pop());
        shown.append(patch);
        patches.push(patch);
      }
    }
    for (const patch of patches.filter(overflows)) patch.textContent = "";
    path.replaceChildren();
    where.forEach((step, index) => {
      const item = document.createElement("li");
      if (index === where.length - 1) {
        item.textContent = said(step, 0);
        item.setAttribute("aria-current", "page");
      } else {
        const back = document.createElement("button");
        back.type = "button";
        back.textContent = step.name;
        back.addEventListener("click", () => { where.length = index + 1; draw(true); });
        item.append(back);
      }
      path.append(item);
    });
    rows.replaceChildren();
    for (const child of children.slice(0, 200)) {
      const row = document.createElement("tr");
      const name = document.createElement("th");
      name.scope = "row";
      if (child.children && child.children.length) {
        const into = document.createElement("button");
        into.type = "button";
        write(into, child.name);
        into.addEventListener("click", () => open(child));
        name.append(into);
      } else {
        write(name, child.name);
      }
      row.append(name);
      for (const text of [human(child.size), (100 * child.size / node.size).toFixed(1) + " %", change(child)]) {
        const cell = document.createElement("td");
        cell.textContent = text;
        row.append(cell);
      }
      rows.append(row);
    }
    if (moved) (box.querySelector("button") || path.querySelector("button") || box).focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && where.length > 1) { where.pop(); draw(true); }
  });
  addEventListener("resize", () => draw(false));
  draw(false);
})();
