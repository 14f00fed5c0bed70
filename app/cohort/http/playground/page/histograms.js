// Histograms.

/** @typedef {{codes: Record<string, number>, variants: Record<string, number>, durations: number[], rows: number[]}} Counts */

/**
 * Return a quantile as Prometheus computes it, with values spread evenly within a bucket.
 * NaN if nothing was counted.
 * @param {number} share From 0 to 1.
 * @param {number[]} counts By bucket. The last is above all bounds.
 * @param {number[]} bounds The buckets' inclusive upper bounds.
 */
export function quantile(share, counts, bounds) {
  const total = counts.reduce((sum, one) => sum + one, 0);
  if (!total) return NaN;
  const rank = share * total;
  let below = 0;
  for (let place = 0; place < bounds.length; place++) {
    const within = counts[place];
    if (below + within >= rank && within) {
      const from = place ? bounds[place - 1] : 0;
      return from + ((bounds[place] - from) * (rank - below)) / within;
    }
    below += within;
  }
  return bounds[bounds.length - 1];
}

/**
 * Return the upper bound of the quantile's bucket, for whole numbers.
 * @param {number} share @param {number[]} counts @param {number[]} bounds
 */
export function bucketOf(share, counts, bounds) {
  const value = quantile(share, counts, bounds);
  return Number.isFinite(value) ? bounds.find(bound => bound >= value) ?? value : NaN;
}

/** Return the total of counts. @param {Record<string, number>} counts */
export const sum = counts => Object.values(counts).reduce((total, one) => total + one, 0);

/** Return the number of failures. @param {Record<string, number>} codes */
export const failures = codes => sum(codes) - (codes.OK ?? 0);

/** Add the counts of several versions. @param {Counts[]} all @returns {Counts} */
export function together(all) {
  /** @type {Counts} */
  const added = { codes: {}, variants: {}, durations: [], rows: [] };
  for (const one of all) {
    for (const kind of /** @type {("codes" | "variants")[]} */ (["codes", "variants"]))
      for (const [name, count] of Object.entries(one[kind])) added[kind][name] = (added[kind][name] ?? 0) + count;
    for (const kind of /** @type {("durations" | "rows")[]} */ (["durations", "rows"]))
      one[kind].forEach((count, place) => { added[kind][place] = (added[kind][place] ?? 0) + count; });
  }
  return added;
}
