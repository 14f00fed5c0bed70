// Half precision (IEEE 754), for which JavaScript has no arrays.

const float = new Float32Array(1), bits = new Uint32Array(float.buffer);

/** Return a number's bits in half precision, rounded to nearest even. @param {number} value */
export function toHalf(value) {
  float[0] = value;
  const sign = (bits[0] >>> 16) & 0x8000, magnitude = Math.abs(float[0]);
  if (Number.isNaN(magnitude)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  const exponent = Math.max(-14, Math.floor(Math.log2(magnitude || 2 ** -24)));
  const steps = magnitude / 2 ** (exponent - 10), low = Math.floor(steps), rest = steps - low;
  const whole = rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
  return sign | (whole + (exponent + 14) * 1024);
}

/** Return the number of half-precision bits. @param {number} half */
export function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1, exponent = (half >>> 10) & 31, fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24);
}
