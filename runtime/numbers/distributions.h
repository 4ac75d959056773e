// runtime/numbers/distributions.h: random bits to numbers, and numbers to elements. Only for sources of this folder.
#pragma once

#include "runtime/numbers/draw.h"
#include "runtime/numbers/elements.h"
#include "runtime/numbers/random_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

namespace shardwise {

/// Words of elements, the first of which has an even index. Random bits are replaced by numbers: doubles, or int64 if they are integers.
struct Words {
  uint64_t* data;
  int64_t n;  // even
};

template <class Number>
void replace_each(Words words, const Number& number) {
  for (int64_t i = 0; i < words.n; ++i) words.data[i] = std::bit_cast<uint64_t>(number(words.data[i]));
}

/// `number(normal number, true if the element's index is odd)`
template <class Number>
void replace_by_normals(Words words, const Number& number) {
  for (int64_t i = 0; i < words.n; i += 2) {
    const auto [first, second] = normals_of(words.data[i], words.data[i + 1]);
    words.data[i] = std::bit_cast<uint64_t>(number(first, false));
    words.data[i + 1] = std::bit_cast<uint64_t>(number(second, true));
  }
}

// `n_digits`: the number of binary digits of an element

inline void to_numbers(const Uniform& uniform, int n_digits, Words words) {
  const uint64_t kept = ~uint64_t{0} << (64 - n_digits);
  const double from = uniform.from, length = uniform.to - uniform.from;
  replace_each(words, [=](uint64_t bits) { return from + fraction(bits & kept) * length; });
}

inline void to_numbers(const Normal& normal, int /*n_digits*/, Words words) {
  const double mean = normal.mean, deviation = normal.deviation, odd_mean = normal.odd_mean;
  replace_by_normals(words, [=](double x, bool is_odd) { return (is_odd ? odd_mean : mean) + deviation * x; });
}

inline void to_numbers(const LogNormal& normal, int /*n_digits*/, Words words) {
  const double mean = normal.mean, deviation = normal.deviation;
  replace_by_normals(words, [=](double x, bool /*is_odd*/) { return std::exp(mean + deviation * x); });
}

inline void to_numbers(const Exponential& exponential, int /*n_digits*/, Words words) {
  const double rate = exponential.rate;
  replace_each(words, [=](uint64_t bits) { return std::max(-logarithm(1 - fraction(bits)), 0x1p-54) / rate; });
}

inline void to_numbers(const Geometric& geometric, int /*n_digits*/, Words words) {
  const double per_trial = std::log1p(-geometric.p);
  replace_each(words,
               [=](uint64_t bits) { return std::max(std::ceil(logarithm(1 - fraction(bits)) / per_trial), 1.0); });
}

inline void to_numbers(const Cauchy& cauchy, int /*n_digits*/, Words words) {
  const double median = cauchy.median, sigma = cauchy.sigma;
  replace_each(words,
               [=](uint64_t bits) { return median + sigma * std::tan(std::numbers::pi * (fraction(bits) - 0.5)); });
}

inline void to_numbers(const Bernoulli& bernoulli, int /*n_digits*/, Words words) {
  const double p = bernoulli.p;
  replace_each(words, [=](uint64_t bits) { return fraction(bits) < p ? 1.0 : 0.0; });
}

inline void to_numbers(const Integers& integers, int /*n_digits*/, Words words) {
  const auto from = static_cast<uint64_t>(integers.from), n = integers.n;
  if ((n & (n - 1)) == 0) return replace_each(words, [=](uint64_t bits) { return from + (bits & (n - 1)); });
  // The quotient by a multiplication is at most 1 too small (Barrett, Implementing the RSA algorithm, 1986).
  __extension__ typedef unsigned __int128 Wide;
  const uint64_t reciprocal = std::numeric_limits<uint64_t>::max() / n;
  replace_each(words, [=](uint64_t bits) {
    const auto quotient = static_cast<uint64_t>(static_cast<Wide>(bits) * reciprocal >> 64);
    const uint64_t rest = bits - quotient * n;
    return from + std::min(rest, rest - n);  // rest - n wraps around if it is below 0
  });
}

template <class T>
inline constexpr bool kIs16BitFloat = std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>;

/// The number of binary digits of an element, 53 at most.
template <class T>
inline constexpr int kDigits = std::is_same_v<T, float>      ? 24
                               : std::is_same_v<T, Half>     ? 11
                               : std::is_same_v<T, BFloat16> ? 8
                                                             : 53;

/// A number as an element. 16-bit floating-point elements are rounded from float32, as torch's are.
template <class T, class Number>
T element_of(Number number) {
  if constexpr (kIs16BitFloat<T>)
    return static_cast<T>(static_cast<float>(number));
  else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Number>)
    return static_cast<T>(static_cast<std::conditional_t<sizeof(T) == 8, int64_t, int32_t>>(
        std::min(number, sizeof(T) == 8 ? 0x1.fffffffffffffp62 : 0x1.fffffffcp30)));
  else
    return static_cast<T>(number);
}

template <class T, class Number>
void write_elements(const uint64_t* numbers, int64_t n, T* elements) {
  for (int64_t i = 0; i < n; ++i) elements[i] = element_of<T>(std::bit_cast<Number>(numbers[i]));
}

/// Replaces numbers that were rounded up to the end of the range by its first number.
template <class T>
void lower_ends(const Uniform& uniform, int64_t n, T* elements) {
  using Comparable = std::conditional_t<kIs16BitFloat<T>, float, T>;
  const auto [from, to] = uniform;
  const auto is_end = [end = static_cast<Comparable>(element_of<T>(to))](T element) {
    return static_cast<Comparable>(element) == end;
  };
  const double highest = from + (1 - std::ldexp(1.0, -kDigits<T>)) * (to - from);
  if (is_end(element_of<T>(highest))) std::replace_if(elements, elements + n, is_end, element_of<T>(from));
}

template <class T>
void to_elements(const Distribution& distribution, const uint64_t* numbers, int64_t n, T* elements) {
  if (std::holds_alternative<Integers>(distribution)) return write_elements<T, int64_t>(numbers, n, elements);
  write_elements<T, double>(numbers, n, elements);
  if constexpr (!std::is_integral_v<T>)
    if (const auto* uniform = std::get_if<Uniform>(&distribution)) lower_ends(*uniform, n, elements);
}

/// Calls `body` with `elements` as an array of its type.
template <class Body>
void with_elements(Stored stored, void* elements, const Body& body) {
  switch (stored) {
    case Stored::kFloat:
      return body(static_cast<float*>(elements));
    case Stored::kDouble:
      return body(static_cast<double*>(elements));
    case Stored::kBFloat16:
      return body(static_cast<BFloat16*>(elements));
    case Stored::kHalf:
      return body(static_cast<Half*>(elements));
    case Stored::k8Bits:
      return body(static_cast<uint8_t*>(elements));
    case Stored::k16Bits:
      return body(static_cast<uint16_t*>(elements));
    case Stored::k32Bits:
      return body(static_cast<uint32_t*>(elements));
    case Stored::k64Bits:
      return body(static_cast<uint64_t*>(elements));
  }
}

}  // namespace shardwise
