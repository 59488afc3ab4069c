#include "kernels/cpu/avx512_codes.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#include "kernels/element/dynamic_map.h"

// GCC 12 warns about its own header (bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// Compiles a function for AVX-512.
#define FSDP_AVX512 __attribute__((target("avx512f")))

namespace fsdp::kernels::cpu {
namespace {

// A register of entries. Of an index, only the lowest four bits count.
template <class Entry>
struct alignas(64) Table {
  Entry& operator[](uint32_t index) { return entries[index % kCodesTogether]; }
  FSDP_AVX512 __m512i loaded() const { return _mm512_load_si512(entries); }

  Entry entries[kCodesTogether] = {};
};

// Calls use(decade, Line<decade>) for each decade.
template <bool kSigned, class Use>
void for_each_decade(Use use) {
  [&]<int... kDecade>(std::integer_sequence<int, kDecade...>) {
    (use(kDecade, typename DynamicMap<kSigned>::template Line<kDecade>{}), ...);
  }
  (std::make_integer_sequence<int, 7>());
}

// The lines from numbers to values. A line's index is the exponent of its numbers.
template <bool kSigned>
struct ValueLines {
  ValueLines() {
    for_each_decade<kSigned>([&](int decade, auto line) {
      const uint32_t i = index_of(Map::kFirst * static_cast<float>(1 << decade));
      slopes[i] = line.kSlope;
      offsets[i] = line.kOffset;
    });
    offsets[index_of(Map::kOne)] = 1;  // the line of the value 1, with slope 0
  }
  static uint32_t index_of(float number) { return bits_as<uint32_t>(number) >> kShift; }

  using Map = DynamicMap<kSigned>;
  static constexpr int kShift = 23;  // the bits of the mantissa
  Table<float> slopes, offsets;
};

// The lines from magnitudes to numbers. Line 0 is that of the value 0. The lines of the decades
// follow, and then, in the unsigned map, the line of the value 1.
//
// A magnitude's index is its exponent without the lowest bit. The magnitudes of an index span less
// than a decade, so at most one line begins among them.
template <bool kSigned>
struct NumberLines {
  NumberLines() {
    for (float& begin : begins.entries) begin = kAboveAll;
    offsets[0] = last_numbers[0] = Map::kFirst - 1;
    for_each_decade<kSigned>([&](int decade, auto line) {
      const float first = Map::kFirst * static_cast<float>(1 << decade);
      add(decade + 1, line.kInverseSlope, line.kInverseOffset, first, 2 * first - 1);
    });
    if (!kSigned) add(8, 0, Map::kOne, Map::kOne, Map::kOne);
  }

  void add(uint32_t line, float slope, float offset, float first_number, float last_number) {
    slopes[line] = slope;
    offsets[line] = offset;
    last_numbers[line] = last_number;
    // code_of decides where the line begins, so the numbers agree.
    const int first_code = static_cast<int>(first_number - Map::kFirst) + 1 + code_of<kSigned>(0);
    uint32_t below = 0, begin = kOneBits;
    while (begin - below > 1) {
      const uint32_t middle = below + (begin - below) / 2;
      (code_of<kSigned>(bits_as<float>(middle)) < first_code ? below : begin) = middle;
    }
    const uint32_t index = begin >> kShift;
    begins[index] = bits_as<float>(begin);
    for (uint32_t i = index + 1; i <= kOneBits >> kShift; ++i) lines[i] = static_cast<int>(line);
  }

  using Map = DynamicMap<kSigned>;
  static constexpr int kShift = 24;
  static constexpr float kLowest = 0x1p-24F;  // has the first of 13 indices
  static constexpr float kAboveAll = 2;
  static constexpr uint32_t kOneBits = 0x3f800000U;
  Table<int> lines;                            // by index: the line of the lowest magnitude
  Table<float> begins;                         // by index: where the next line begins
  Table<float> slopes, offsets, last_numbers;  // by line
};

FSDP_AVX512 inline __m512i bits_of(__m512 values) { return _mm512_castps_si512(values); }
FSDP_AVX512 inline __m512 floats_of(__m512i bits) { return _mm512_castsi512_ps(bits); }
FSDP_AVX512 inline __m512 look_up(__m512i indices, const Table<float>& table) {
  return floats_of(_mm512_permutexvar_epi32(indices, table.loaded()));
}
FSDP_AVX512 inline __m512 without_sign(__m512 values) {
  return floats_of(_mm512_and_si512(bits_of(values), _mm512_set1_epi32(~kSignBit)));
}
// Returns `magnitudes`, which have no sign, with the signs of `values`.
FSDP_AVX512 inline __m512 with_signs(__m512 magnitudes, __m512 values) {
  const __m512i signs = _mm512_and_si512(bits_of(values), _mm512_set1_epi32(kSignBit));
  return floats_of(_mm512_or_si512(bits_of(magnitudes), signs));
}

// The difference between the code and the number of a value.
template <bool kSigned>
constexpr int kCodeMinusNumber = kSigned ? 127 : -1;

template <bool kSigned>
FSDP_AVX512 void decode(const uint8_t* codes, int64_t numel, float absmax, float* values) {
  static const ValueLines<kSigned> lines;
  for (int64_t i = 0; i < numel; i += kCodesTogether) {
    const __m512i code =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m512 number =
        _mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(kCodeMinusNumber<kSigned>)));
    const __m512i index = _mm512_srli_epi32(bits_of(number), lines.kShift);
    __m512 value = _mm512_fmadd_ps(kSigned ? without_sign(number) : number,
                                   look_up(index, lines.slopes), look_up(index, lines.offsets));
    // The signed map's number 0 has the index of a line, which is negative there.
    if (kSigned) value = with_signs(_mm512_max_ps(value, _mm512_setzero_ps()), number);
    _mm512_storeu_ps(values + i, _mm512_mul_ps(value, _mm512_set1_ps(absmax)));
  }
}

template <bool kSigned>
FSDP_AVX512 void encode(const float* values, int64_t numel, float inverse, uint8_t* codes) {
  using Map = DynamicMap<kSigned>;
  static const NumberLines<kSigned> lines;
  for (int64_t i = 0; i < numel; i += kCodesTogether) {
    const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(values + i), _mm512_set1_ps(inverse));
    // If the first operand of max is a NaN, the result is the second.
    const __m512 magnitude =
        _mm512_max_ps(kSigned ? without_sign(value) : value, _mm512_set1_ps(lines.kLowest));
    const __m512i index = _mm512_srli_epi32(bits_of(magnitude), lines.kShift);
    __m512i line = _mm512_permutexvar_epi32(index, lines.lines.loaded());
    const __mmask16 next = _mm512_cmp_ps_mask(magnitude, look_up(index, lines.begins), _CMP_GE_OQ);
    line = _mm512_mask_add_epi32(line, next, line, _mm512_set1_epi32(1));
    __m512 number =
        _mm512_fmadd_ps(magnitude, look_up(line, lines.slopes), look_up(line, lines.offsets));
    number = _mm512_min_ps(number, look_up(line, lines.last_numbers));
    if (kSigned) {
      // Only positive values include 1.
      const __mmask16 one = _mm512_cmp_ps_mask(value, _mm512_set1_ps(Map::kHighest), _CMP_GE_OQ);
      number = _mm512_mask_mov_ps(with_signs(number, value), one, _mm512_set1_ps(Map::kOne));
    }
    const __m512i code =
        _mm512_add_epi32(_mm512_cvttps_epi32(number), _mm512_set1_epi32(kCodeMinusNumber<kSigned>));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
  }
}

}  // namespace

bool has_avx512_codes() { return __builtin_cpu_supports("avx512f") != 0; }

#else

namespace fsdp::kernels::cpu {
namespace {

template <bool kSigned>
void decode(const uint8_t* /*codes*/, int64_t /*numel*/, float /*absmax*/, float* /*values*/) {}
template <bool kSigned>
void encode(const float* /*values*/, int64_t /*numel*/, float /*inverse*/, uint8_t* /*codes*/) {}

}  // namespace

bool has_avx512_codes() { return false; }

#endif

template <bool kSigned>
void decode_by_avx512(const uint8_t* codes, int64_t numel, float absmax, float* values) {
  decode<kSigned>(codes, numel, absmax, values);
}
template void decode_by_avx512<true>(const uint8_t*, int64_t, float, float*);
template void decode_by_avx512<false>(const uint8_t*, int64_t, float, float*);

template <bool kSigned>
void encode_by_avx512(const float* values, int64_t numel, float inverse, uint8_t* codes) {
  encode<kSigned>(values, numel, inverse, codes);
}
template void encode_by_avx512<true>(const float*, int64_t, float, uint8_t*);
template void encode_by_avx512<false>(const float*, int64_t, float, uint8_t*);

}  // namespace fsdp::kernels::cpu
