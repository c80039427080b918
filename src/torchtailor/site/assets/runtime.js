// What Python has and JavaScript lacks, for code that `torchtailor.site.compiler` translated.
// Tuples and lists are arrays, None is null; the rest is below.

class $Kw { constructor(given) { Object.assign(this, given); } }
const $kw = (given) => new $Kw(given);
const $options = (args) => (args.at(-1) instanceof $Kw ? args.pop() : {});

// Dictionaries and sets by value: the key of a value is a string that equal values share.
const $key = (x) => {
  if (x === null || x === undefined) return "N";
  switch (typeof x) {
    case "string": return "s" + x;
    case "number": return "n" + x;
    case "boolean": return "n" + Number(x);
    case "function": return "f" + x.$name;
  }
  if (Array.isArray(x)) {
    let whole = "(";
    for (const y of x) { const k = $key(y); whole += k.length + ":" + k; }
    return whole + ")";
  }
  if (x.$k !== undefined) return x.$k;
  let key;
  if (x instanceof $Set) return "{" + [...x].map($key).sort().join("\0") + "}";
  if (x.__hash__) key = "h" + x.constructor.$name + $key(x.__hash__());
  else if (x.constructor.$fields) key = x.constructor.$name + $key(x.constructor.$fields.map((f) => x[f]));
  else if (x instanceof $Dict) throw $b.TypeError("unhashable");
  else key = "i" + $b.id(x);
  x.$k = key;  // such objects do not change
  return key;
};
class $Dict {
  constructor() { this.map = new Map(); }
  get size() { return this.map.size; }
  *[Symbol.iterator]() { for (const [k] of this.map.values()) yield k; }
  has(k) { return this.map.has($key(k)); }
  get(k, otherwise = null) { const row = this.map.get($key(k)); return row ? row[1] : otherwise; }
  set(k, v) { const key = $key(k), row = this.map.get(key); if (row) row[1] = v; else this.map.set(key, [k, v]); }
  setdefault(k, v = null) { if (!this.has(k)) this.set(k, v); return this.get(k); }
  items() { return [...this.map.values()].map(([k, v]) => [k, v]); }
  keys() { return [...this]; }
  values() { return [...this.map.values()].map(([, v]) => v); }
  update(other) { for (const [k, v] of $pairs(other)) this.set(k, v); return null; }
  py_pop(k, ...otherwise) {
    if (!this.has(k)) { if (otherwise.length) return otherwise[0]; throw $b.KeyError(k); }
    const v = this.get(k); this.map.delete($key(k)); return v;
  }
}
class $Set {
  constructor(items = []) {
    if (items instanceof $Set) { this.map = new Map(items.map); return; }
    this.map = new Map();
    for (const x of items) this.map.set($key(x), x);
  }
  get size() { return this.map.size; }
  [Symbol.iterator]() { return this.map.values(); }
  has(x) { return this.map.has($key(x)); }
  add(x) { if (!this.has(x)) this.map.set($key(x), x); return null; }
  isdisjoint(other) { for (const x of other) if (this.has(x)) return false; return true; }
  intersection(...others) { return others.reduce((a, b) => $band(a, $as_set(b)), this); }
  union(...others) { return others.reduce((a, b) => $bor(a, $as_set(b)), this); }
}
class $Counter_ extends $Dict {
  most_common(n) { return $b.sorted(this.items(), $kw({ key: (row) => -row[1] })).slice(0, n); }
}
const $Counter = (items) => {
  const counts = new $Counter_();
  for (const x of items) counts.set(x, counts.get(x, 0) + 1);
  return counts;
};
const $as_set = (x) => (x instanceof $Set ? x : new $Set(x));
const $pairs = (x) => (x instanceof $Dict ? x.items() : x);

// Truth, equality, order.
const $t = (x) => {
  if (x === null || x === undefined || x === false || x === 0 || x === "") return false;
  if (Array.isArray(x)) return x.length > 0;
  if (x instanceof $Dict || x instanceof $Set) return x.size > 0;
  return true;
};
const $or = (a, ...rest) => { for (const next of rest) { if ($t(a)) return a; a = next(); } return a; };
const $and = (a, ...rest) => { for (const next of rest) { if (!$t(a)) return a; a = next(); } return a; };
const $eq = (a, b) => {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (Array.isArray(a)) {
    if (!Array.isArray(b) || a.length !== b.length) return false;
    for (let i = 0; i < a.length; i++) if (!$eq(a[i], b[i])) return false;
    return true;
  }
  if (a instanceof $Set) return b instanceof $Set && a.size === b.size && [...a].every((x) => b.has(x));
  if (a instanceof $Dict) return b instanceof $Dict && a.size === b.size && a.items().every(([k, v]) => b.has(k) && $eq(v, b.get(k)));
  if (a.__eq__) return a.__eq__(b);
  const fields = a.constructor.$fields;
  if (!fields || a.constructor !== b.constructor) return false;
  for (let i = 0; i < fields.length; i++) if (!$eq(a[fields[i]], b[fields[i]])) return false;
  return true;
};
const $compare = (a, b) => {
  if (typeof a !== "object" || a === null) {
    if (a === null || b === null || typeof a !== typeof b && typeof a === "string") throw $b.TypeError("not comparable");
    return a < b ? -1 : a > b ? 1 : 0;
  }
  if (Array.isArray(a)) {
    for (let i = 0; i < Math.min(a.length, b.length); i++) if (!$eq(a[i], b[i])) return $compare(a[i], b[i]);
    return a.length - b.length;
  }
  return a.__lt__(b) ? -1 : $eq(a, b) ? 0 : 1;
};
const $lt = (a, b) => (a instanceof $Set ? a.size < b.size && $le(a, b) : $compare(a, b) < 0);
const $le = (a, b) => (a instanceof $Set ? [...a].every((x) => b.has(x)) : $compare(a, b) <= 0);
const $gt = (a, b) => $lt(b, a);
const $ge = (a, b) => $le(b, a);
const $in = (x, c) => {
  if (typeof c === "string") return c.includes(x);
  if (c instanceof $Dict || c instanceof $Set) return c.has(x);
  for (const y of c) if ($eq(x, y)) return true;
  return false;
};

// Arithmetic of numbers, strings, lists and sets.
const $add = (a, b) => (Array.isArray(a) ? [...a, ...b] : a + b);
const $iadd = (a, b) => { if (!Array.isArray(a)) return a + b; const more = [...b]; a = [...a, ...more]; return a; };
const $sub = (a, b) => (a instanceof $Set ? new $Set([...a].filter((x) => !b.has(x))) : a - b);
const $mul = (a, b) => (typeof a === "string" ? a.repeat(b) : a * b);
const $bor = (a, b) => {
  if (a instanceof $Set) return new $Set([...a, ...b]);
  if (a instanceof $Dict) return $b.dict([...a.items(), ...b.items()]);
  return typeof a === "number" ? a | b : [a, b].flat();
};
const $band = (a, b) => (a instanceof $Set ? new $Set([...a].filter((x) => b.has(x))) : a & b);
const $floordiv = (a, b) => Math.floor(a / b);
const $mod = (a, b) => ((a % b) + b) % b;

const $at = (x, i) => {
  if (x instanceof $Dict) { if (!x.has(i)) throw $b.KeyError(i); return x.get(i); }
  if (x instanceof $Match) return x.group(i);
  const found = x[i < 0 ? x.length + i : i];
  if (found === undefined) throw $b.IndexError("index out of range");
  return found;
};
const $set = (x, i, v) => { if (x instanceof $Dict) x.set(i, v); else x[i < 0 ? x.length + i : i] = v; };
const $slice = (x, a, b) => x.slice(a ?? 0, b ?? x.length);
const $bound = (x, name) => { const v = x[name]; return typeof v === "function" && !v.$name ? v.bind(x) : v; };

const $repr = (x) => {
  if (typeof x !== "string") return Array.isArray(x) ? "[" + x.map($repr).join(", ") + "]" : $str(x);
  const quote = x.includes("'") && !x.includes('"') ? '"' : "'";
  const shown = x.replace(/[\\\n\r\t\x00-\x1f\x7f]/g, (c) => ({ "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" })[c]
    ?? "\\x" + c.charCodeAt(0).toString(16).padStart(2, "0"));
  return quote + shown.replaceAll(quote, "\\" + quote) + quote;
};
const $str = (x) => {
  if (typeof x === "string") return x;
  if (x === null || x === undefined) return "None";
  if (typeof x === "boolean") return x ? "True" : "False";
  if (typeof x === "number") return String(x);
  return x.__str__ ? x.__str__() : $repr(x);
};

const $kept = (own, compute) => function () {
  const known = this[own];
  if (known !== undefined) return known;
  return (this[own] = compute.call(this));
};

// Classes: plain functions that make an object, so that a call is a call.
const $class = (name, base, spec) => {
  const make = spec.make ?? function (...args) { this.__init__(...args); };
  const cls = (...args) => (cls.$lookup ? $member(cls, args[0]) : new make(...args));
  cls.prototype = make.prototype;
  if (base) { Object.setPrototypeOf(cls, base); Object.setPrototypeOf(make.prototype, base.prototype); }
  cls.$name = name;
  const proto = cls.prototype;
  const hide = (target, key, description) => Object.defineProperty(target, key, { configurable: true, ...description });
  hide(proto, "constructor", { value: cls });
  if (spec.fields) cls.$fields = spec.fields;
  for (const [key, value] of Object.entries(spec.attributes ?? {})) { cls[key] = value; proto[key] = value; }
  for (const [key, value] of Object.entries(spec.methods ?? {})) hide(proto, key, { value });
  for (const [key, get] of Object.entries(spec.getters ?? {})) hide(proto, key, { get });
  for (const [key, compute] of Object.entries(spec.kept ?? {}))
    hide(proto, key, { get: $kept("$" + key, compute) });
  for (const [key, value] of Object.entries(spec.statics ?? {})) {
    hide(cls, key, { value });
    hide(proto, key, { value(...args) { return this.constructor[key](...args); } });
  }
  if (spec.members) {
    const members = spec.members.map(([member, value]) => {
      const one = Object.create(proto);
      Object.assign(one, { name: member, value });
      hide(one, "$k", { value: `e${name}.${member}` });
      cls[member] = one;
      return one;
    });
    hide(proto, "__eq__", { value(other) { return this === other; } });
    cls.$lookup = new $Dict();
    for (const one of members) cls.$lookup.set(one.value, one);
    cls[Symbol.iterator] = () => members[Symbol.iterator]();
  }
  return cls;
};
const $member = (cls, value) => {
  const found = cls.$lookup.get(value);
  if (!found) throw $b.ValueError(`${$repr(value)} is not a valid ${cls.$name}`);
  return found;
};
const $missing = (name) => { throw $b.TypeError(`missing: ${name}`); };
const $is = (x, kind) => {
  if (Array.isArray(kind)) return kind.some((one) => $is(x, one));
  switch (kind) {
    case $b.str: return typeof x === "string";
    case $b.int: return typeof x === "number" && Number.isInteger(x) || typeof x === "boolean";
    case $b.float: return typeof x === "number";
    case $b.bool: return typeof x === "boolean";
    case $b.tuple: case $b.list: return Array.isArray(x);
    case $b.dict: return x instanceof $Dict;
    case $b.set: case $b.frozenset: return x instanceof $Set;
  }
  return x !== null && typeof x === "object" && kind.prototype.isPrototypeOf(x);
};
const $replace = (x, changes) => {
  const copy = Object.create(Object.getPrototypeOf(x));
  for (const field of x.constructor.$fields) copy[field] = field in changes ? changes[field] : x[field];
  return copy;
};
const $cache = (f) => {
  const known = new Map();
  return (...args) => {
    const key = $key(args);
    if (!known.has(key)) known.set(key, f(...args));
    return known.get(key);
  };
};

const $error = (name, base) => $class(name, base, {
  methods: { __init__(...args) { this.args = args; this.message = $str(args[0] ?? ""); }, __str__() { return this.message; } },
});
const $choose = (better) => (...args) => {
  const { key = (x) => x, default: otherwise } = $options(args);
  let best, bestKey, found = false;
  for (const x of args.length === 1 ? args[0] : args) {
    const k = key(x);
    if (!found || better(k, bestKey)) { best = x; bestKey = k; found = true; }
  }
  if (!found && otherwise === undefined) throw $b.ValueError("nothing to choose from");
  return found ? best : otherwise;
};
const $ids = new WeakMap();
let $last_id = 0;
const $sets = new WeakMap();  // of tuples, which do not change: a CPU's flags are asked for thousands of times
const $b = {
  tuple: (x = []) => (Array.isArray(x) && Object.isFrozen(x) ? x : Object.freeze([...x])),
  list: (x = []) => [...x],
  set: (x = []) => new $Set(x),
  frozenset: (x = []) => {
    if (!Array.isArray(x) || !Object.isFrozen(x)) return new $Set(x);
    if (!$sets.has(x)) $sets.set(x, new $Set(x));
    return $sets.get(x);
  },
  dict: (x = []) => { const made = new $Dict(); made.update(x); return made; },
  sorted: (...args) => {
    const { key = (x) => x, reverse = false } = $options(args);
    const rows = [...args[0]].map((x) => [key(x), x]);
    rows.sort((a, b) => (reverse ? -1 : 1) * $compare(a[0], b[0]));
    return rows.map(([, x]) => x);
  },
  max: $choose((a, b) => $compare(a, b) > 0),
  min: $choose((a, b) => $compare(a, b) < 0),
  sum: (x) => { let total = 0; for (const y of x) total += Number(y); return total; },
  any: (x) => { for (const y of x) if ($t(y)) return true; return false; },
  all: (x) => { for (const y of x) if (!$t(y)) return false; return true; },
  len: (x) => x.length ?? x.size,
  str: (x = "") => $str(x),
  repr: (x) => $repr(x),
  int: (x) => {
    if (typeof x !== "string") return Math.trunc(x);
    if (!/^\s*[+-]?\d+(?:_\d+)*\s*$/.test(x)) throw $b.ValueError(`not a number: ${x}`);
    return Number(x.replaceAll("_", ""));
  },
  float: (x) => Number(x),
  bool: (x) => $t(x),
  enumerate: (x, start = 0) => [...x].map((y, i) => [i + start, y]),
  zip: (...args) => {
    const { strict = false } = $options(args);
    const lists = args.map((x) => [...x]), sizes = lists.map((x) => x.length);
    if (strict && new Set(sizes).size > 1) throw $b.ValueError("zip of different lengths");
    return Array.from({ length: Math.min(...sizes) }, (_, i) => lists.map((x) => x[i]));
  },
  map: function* (f, ...lists) { for (const row of $b.zip(...lists)) yield f(...row); },
  filter: function* (f, x) { for (const y of x) if ($t(f === null ? y : f(y))) yield y; },
  range: (a, b) => { const [start, end] = b === undefined ? [0, a] : [a, b]; return Array.from({ length: Math.max(0, end - start) }, (_, i) => start + i); },
  reversed: (x) => [...x].reverse(),
  iter: (x) => x[Symbol.iterator](),
  next: (x, ...otherwise) => {
    const { done, value } = x.next();
    if (!done) return value;
    if (!otherwise.length) throw $b.ValueError("nothing is next");
    return otherwise[0];
  },
  isinstance: (x, kind) => $is(x, kind),
  type: (x) => x.constructor,
  getattr: (x, name, otherwise) => x[name] ?? otherwise,
  hash: (x) => $key(x),
  id: (x) => { if (!$ids.has(x)) $ids.set(x, ++$last_id); return $ids.get(x); },
  abs: Math.abs,
  round: Math.round,
};
$b.dict.fromkeys = (x, value = null) => $b.dict([...x].map((y) => [y, value]));
$b.frozenset.intersection = (first, ...rest) => first.intersection(...rest);
$b.Exception = $error("Exception", null);
for (const name of ["ValueError", "TypeError", "LookupError", "AssertionError", "NotImplementedError"]) $b[name] = $error(name, $b.Exception);
for (const name of ["KeyError", "IndexError"]) $b[name] = $error(name, $b.LookupError);

// Regular expressions.
const $source = (pattern) => pattern.replaceAll("(?P<", "(?<").replace(/(?<!\\)\$(?=\)|\||$)/g, "(?=\\n?$(?![\\s\\S]))");
class $Match {
  constructor(found) { this.found = found; }
  group(i = 0) { return (typeof i === "string" ? this.found.groups?.[i] : this.found[i]) ?? null; }
  groups() { return this.found.slice(1).map((x) => x ?? null); }
  start() { return this.found.index; }
  end() { return this.found.index + this.found[0].length; }
}
class $Pattern {
  constructor(pattern, flags = 0) { this.pattern = pattern; this.flags = flags; this.made = {}; }
  regexp(kind) {
    const letters = "g" + (this.flags & 2 ? "i" : "") + (this.flags & 8 ? "m" : "") + (this.flags & 16 ? "s" : "");
    const source = $source(this.pattern);
    const whole = { search: source, match: `(?:${source})`, fullmatch: `(?:${source})(?![\\s\\S])` }[kind];
    return new RegExp(whole, kind === "search" ? letters : letters.replace("g", "y"));
  }
  kept(kind) { const made = (this.made[kind] ??= this.regexp(kind)); made.lastIndex = 0; return made; }
  once(kind, text) { const found = this.kept(kind).exec(text); return found && new $Match(found); }
  search(text) { return this.once("search", text); }
  match(text) { return this.once("match", text); }
  fullmatch(text) { return this.once("fullmatch", text); }
  *finditer(text) { for (const found of text.matchAll(this.kept("search"))) yield new $Match(found); }
  findall(text) {
    return [...text.matchAll(this.kept("search"))].map((m) => (m.length === 1 ? m[0] : m.length === 2 ? m[1] ?? "" : m.slice(1).map((x) => x ?? "")));
  }
  sub(by, text) {
    const fill = typeof by === "function" ? (found) => by(new $Match(found))
      : (found) => by.replace(/\\(\d+)|\\g<(\w+)>/g, (_, i, name) => (i ? found[i] : found.groups[name]) ?? "");
    let made = "", from = 0;
    for (const found of text.matchAll(this.kept("search"))) { made += text.slice(from, found.index) + fill(found); from = found.index + found[0].length; }
    return made + text.slice(from);
  }
  py_split(text) {
    const parts = [];
    let from = 0;
    for (const found of text.matchAll(this.kept("search"))) { parts.push(text.slice(from, found.index), ...found.slice(1).map((x) => x ?? null)); from = found.index + found[0].length; }
    return [...parts, text.slice(from)];
  }
}
const $patterns = new Map();
const $re = {
  IGNORECASE: 2, MULTILINE: 8, DOTALL: 16,
  compile: (pattern, flags = 0) => {
    if (pattern instanceof $Pattern) return pattern;
    const key = flags + pattern;
    if (!$patterns.has(key)) $patterns.set(key, new $Pattern(pattern, flags));
    return $patterns.get(key);
  },
  escape: (text) => text.replace(/[\\^$.*+?()[\]{}|#&~\-\s]/g, "\\$&"),
};
for (const name of ["search", "match", "fullmatch", "findall", "finditer"]) $re[name] = (pattern, text, flags = 0) => $re.compile(pattern, flags)[name](text);
$re.sub = (pattern, by, text) => $re.compile(pattern).sub(by, text);
$re.split = (pattern, text) => $re.compile(pattern).py_split(text);

// Methods of strings and lists.
const $methods = (target, methods) => {
  for (const [name, value] of Object.entries(methods)) Object.defineProperty(target, name, { value, configurable: true, writable: true });
};
const $strip = (text, signs, start, end) => {
  const drop = (c) => (signs === undefined || signs === null ? /\s/.test(c) : signs.includes(c));
  let a = 0, b = text.length;
  while (start && a < b && drop(text[a])) a++;
  while (end && b > a && drop(text[b - 1])) b--;
  return text.slice(a, b);
};
$methods(String.prototype, {
  lower() { return this.toLowerCase(); },
  upper() { return this.toUpperCase(); },
  strip(signs) { return $strip(String(this), signs, true, true); },
  lstrip(signs) { return $strip(String(this), signs, true, false); },
  rstrip(signs) { return $strip(String(this), signs, false, true); },
  startswith(x) { return [x].flat().some((y) => this.startsWith(y)); },
  endswith(x) { return [x].flat().some((y) => this.endsWith(y)); },
  removeprefix(x) { return this.startsWith(x) ? this.slice(x.length) : String(this); },
  removesuffix(x) { return x && this.endsWith(x) ? this.slice(0, -x.length) : String(this); },
  join(items) { return [...items].join(this); },
  py_split(...args) {
    const { maxsplit = args[1] ?? -1 } = $options(args);
    if (args[0] === undefined || args[0] === null) return this.trim() ? this.trim().split(/\s+/) : [];
    const parts = this.split(args[0]);
    return maxsplit < 0 || parts.length <= maxsplit + 1 ? parts : [...parts.slice(0, maxsplit), parts.slice(maxsplit).join(args[0])];
  },
  rsplit(sign, most) {
    const parts = this.split(sign), kept = Math.max(0, parts.length - most);
    return kept > 0 ? [parts.slice(0, kept).join(sign), ...parts.slice(kept)] : parts;
  },
  splitlines() { const lines = this.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/); if (lines.at(-1) === "") lines.pop(); return lines; },
  partition(sign) { const at = this.indexOf(sign); return at < 0 ? [String(this), "", ""] : [this.slice(0, at), sign, this.slice(at + sign.length)]; },
  rpartition(sign) { const at = this.lastIndexOf(sign); return at < 0 ? ["", "", String(this)] : [this.slice(0, at), sign, this.slice(at + sign.length)]; },
  py_replace(a, b, count = -1) { if (count < 0) return this.replaceAll(a, () => b); let text = String(this); while (count-- > 0) text = text.replace(a, () => b); return text; },
  isdecimal() { return /^\p{Nd}+$/u.test(this); },
  isdigit() { return /^\p{Nd}+$/u.test(this); },
  isalpha() { return /^\p{L}+$/u.test(this); },
  isspace() { return /^\s+$/.test(this); },
  count(x) { return this.split(x).length - 1; },
  find(x) { return this.indexOf(x); },
  format(given) { return this.replace(/\{(\w+)\}/g, (_, name) => $str(given[name])); },
  index(x) { const at = this.indexOf(x); if (at < 0) throw $b.ValueError("not found"); return at; },
});
$methods(Array.prototype, {
  append(x) { this.push(x); return null; },
  extend(items) { this.push(...items); return null; },
  insert(i, x) { this.splice(i, 0, x); return null; },
  index(x) { const at = this.findIndex((y) => $eq(x, y)); if (at < 0) throw $b.ValueError("not in the list"); return at; },
  count(x) { return this.filter((y) => $eq(x, y)).length; },
  py_pop(i = -1) { return this.splice(i, 1)[0]; },
});

// Functions of the standard library.
const $quote = (text) => (text === "" ? "''" : /[^\w@%+=:,./-]/.test(text) ? "'" + text.replaceAll("'", "'\"'\"'") + "'" : text);
const $escape = (text) => text.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" })[c]);
const $dumps = (x) => JSON.stringify($to_json(x));
const $matching = (a, b) => {
  // The size of difflib's matching blocks: the longest run first, then what is left and right of it.
  const places = new Map();
  [...b].forEach((c, j) => (places.get(c) ?? places.set(c, []).get(c)).push(j));
  let total = 0;
  const todo = [[0, a.length, 0, b.length]];
  while (todo.length) {
    const [alo, ahi, blo, bhi] = todo.pop();
    let [besti, bestj, size] = [alo, blo, 0], lengths = new Map();
    for (let i = alo; i < ahi; i++) {
      const now = new Map();
      for (const j of places.get(a[i]) ?? []) {
        if (j < blo) continue;
        if (j >= bhi) break;
        const k = (lengths.get(j - 1) ?? 0) + 1;
        now.set(j, k);
        if (k > size) [besti, bestj, size] = [i - k + 1, j - k + 1, k];
      }
      lengths = now;
    }
    if (!size) continue;
    total += size;
    todo.push([alo, besti, blo, bestj], [besti + size, ahi, bestj + size, bhi]);
  }
  return total;
};
const $close_matches = (...args) => {
  const { n = 3, cutoff = 0.6 } = $options(args);
  const [word, known] = args, rows = [];
  for (const x of known) {
    const ratio = word.length + x.length ? (2 * $matching(x, word)) / (word.length + x.length) : 1;
    if (ratio >= cutoff) rows.push([ratio, x]);
  }
  return $b.sorted(rows, $kw({ reverse: true })).slice(0, n).map(([, x]) => x);
};

// archspec's table of microarchitectures.
const $archspec = new $Dict();
const $load_archspec = (rows) => {
  for (const [name, [vendor, parents, ancestors, features, kept, cpu_part, family]] of Object.entries(rows)) {
    const all = new $Set(features);
    if (kept) for (const parent of parents) for (const word of $archspec.get(parent).features) all.add(word);
    const one = { name, vendor, features: all, cpu_part, family, ancestors: ancestors.map((x) => $archspec.get(x)) };
    $archspec.set(name, Object.assign(one, { __eq__: (other) => other === one, __str__: () => name }));
  }
};

// Values in and out.
const $decode_all = ({ $archspec: targets, ...encoded }, classes) => {
  if (targets) $load_archspec(targets);
  const words = new Map();
  const word = (cls, text) => {
    const key = cls.$name + text;
    if (!words.has(key)) words.set(key, cls.parse(text));
    return words.get(key);
  };
  const decode = (x) => {
    if (!Array.isArray(x)) return x;
    const [kind] = x;
    if (kind === 0) return Object.freeze(x.slice(1).map(decode));
    if (kind === 1) { const made = new $Dict(); for (let i = 1; i < x.length; i += 2) made.set(decode(x[i]), decode(x[i + 1])); return made; }
    if (kind === 2) return new $Set(x.slice(1).map(decode));
    if (kind === 3) return classes[x[1] - 5][0][x[2]];
    if (kind === 4) return $re.compile(x[1], x[2]);
    const [cls, fields] = classes[kind - 5];
    if (fields.length === 0 && x.length > 1) return word(cls, x[1]);
    const one = Object.create(cls.prototype);
    fields.forEach((field, i) => { one[field] = decode(x[i + 1]); });
    return one;
  };
  return Object.fromEntries(Object.entries(encoded).map(([name, value]) => [name, decode(value)]));
};
const $to_json = (x) => {
  if (x === undefined) return null;
  if (x === null || typeof x !== "object") return x;
  if (Array.isArray(x) || x instanceof $Set) return [...x].map($to_json);
  if (x instanceof $Dict) return Object.fromEntries(x.items().map(([k, v]) => [$str(k), $to_json(v)]));
  if (x.constructor.$lookup) return x.value;
  if (x.constructor.$fields) return Object.fromEntries(x.constructor.$fields.map((field) => [field, $to_json(x[field])]));
  return $str(x);
};
const $from_json = (x) => {
  if (x === null || typeof x !== "object") return x;
  if (Array.isArray(x)) return x.map($from_json);
  return $b.dict(Object.entries(x).map(([k, v]) => [k, $from_json(v)]));
};
