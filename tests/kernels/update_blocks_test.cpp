#include "kernels/update_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fsdp/error.h"
#include "kernels/element/dynamic_map.h"
#include "kernels/support/streams.h"
#include "kernels/support/update_state.h"

namespace fsdp::kernels {
namespace {

using test::UpdateState;

// Returns the values of a map in ascending order, by the formula in the header.
std::vector<double> values_of_map(bool is_signed) {
  std::vector<double> values{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = 1 << (is_signed ? decade : decade + 1);
    for (int k = 0; k < count; ++k) {
      values.push_back(std::pow(10.0, decade - 6) * (0.1 + 0.9 * (k + 0.5) / count));
      if (is_signed) values.push_back(-values.back());
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

template <bool kSigned>
void check_map() {
  const std::vector<double> values = values_of_map(kSigned);
  REQUIRE(values.size() == 256);
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const float value = value_of_code<kSigned>(code);
    CHECK(std::fabs(value - values[code]) <= std::fabs(values[code]) / (1 << 20));
    CHECK(code_of<kSigned>(value) == code);
  }
  // All magnitudes up to 1, in steps of a prime number of floats.
  int64_t wrong = 0, apart = 0;
  for (uint32_t bits = 0; bits <= 0x3f800000U; bits += 4099) {
    for (const uint32_t sign : {0U, 0x80000000U}) {
      if (sign != 0 && !kSigned) continue;
      const float x = bits_as<float>(bits | sign);
      const auto after = std::lower_bound(values.begin(), values.end(), double{x});
      auto nearest = after == values.end() ? after - 1 : after;
      if (nearest != values.begin() && x - *(nearest - 1) < *nearest - x) --nearest;
      const int expected = static_cast<int>(nearest - values.begin());
      const int code = code_of<kSigned>(x);
      if (code == expected) continue;
      ++apart;
      const double middle = (values[code] + values[expected]) / 2;
      if (std::abs(code - expected) != 1 || std::fabs(x - middle) > 1e-6 * std::fabs(middle))
        ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(apart <= 4);
}

TEST_CASE("codes have the published values, and a value has the nearest code") {
  check_map<true>();
  check_map<false>();
}

// A segment with quantized moments of arbitrary codes.
struct BlockState {
  BlockState(int64_t numel, uint32_t seed, DType copy_dtype = DType::kBFloat16)
      : state(numel, seed, copy_dtype) {
    const int64_t blocks = (numel + kQuantizedBlock - 1) / kQuantizedBlock;
    for (int moment = 0; moment < 2; ++moment) {
      absmax[moment] = test::values(blocks, seed + 7, moment == 0 ? 0.1F : 0.01F);
      for (float& each : absmax[moment]) each = std::fabs(each);
      for (int64_t i = 0; i < numel; ++i) {
        codes[moment].push_back(static_cast<uint8_t>((i * 37 + seed + moment * 11) % 256));
      }
    }
  }
  BlockSegment segment(bool with_copy) {
    return {.elements = state.segment(with_copy),
            .exp_avg = {codes[0].data(), absmax[0].data()},
            .exp_avg_sq = {codes[1].data(), absmax[1].data()}};
  }
  int64_t differences(const BlockState& other) const {
    int64_t count = state.differences(other.state);
    for (int moment = 0; moment < 2; ++moment) {
      for (size_t i = 0; i < codes[moment].size(); ++i) {
        count += codes[moment][i] == other.codes[moment][i] ? 0 : 1;
      }
      for (size_t i = 0; i < absmax[moment].size(); ++i) {
        count += test::same(absmax[moment][i], other.absmax[moment][i]) ? 0 : 1;
      }
    }
    return count;
  }

  UpdateState state;  // without moments
  std::vector<uint8_t> codes[2];
  std::vector<float> absmax[2];
};

template <bool kSigned>
void plain_quantize(const std::vector<float>& values, std::vector<uint8_t>& codes,
                    std::vector<float>& absmax) {
  for (size_t block = 0; block < absmax.size(); ++block) {
    const size_t begin = block * kQuantizedBlock;
    const size_t end = std::min(values.size(), begin + kQuantizedBlock);
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    absmax[block] = largest;
    const float inverse = largest == 0 ? 0 : 1 / largest;
    for (size_t i = begin; i < end; ++i)
      codes[i] = static_cast<uint8_t>(code_of<kSigned>(values[i] * inverse));
  }
}

// Updates by AdamW's kernel with the moments in float32, and quantizes them.
void plain_update(Stream& stream, BlockState& s, const AdamW& rule, float grad_scale) {
  UpdateState& elements = s.state;
  for (size_t i = 0; i < elements.param.size(); ++i) {
    elements.first[i] = value_of_code<true>(s.codes[0][i]) * s.absmax[0][i / kQuantizedBlock];
    elements.second[i] = value_of_code<false>(s.codes[1][i]) * s.absmax[1][i / kQuantizedBlock];
  }
  const UpdateSegment segment = elements.segment(/*with_copy=*/true);
  update(stream, {&segment, 1}, rule, {.grad_scale = &grad_scale});
  stream.synchronize();
  plain_quantize<true>(elements.first, s.codes[0], s.absmax[0]);
  plain_quantize<false>(elements.second, s.codes[1], s.absmax[1]);
}

TEST_CASE("steps equal AdamW's with moments that are quantized after each step, bit for bit") {
  test::on_each_stream([](Stream& stream) {
    const AdamW rule{.beta1 = 0.8, .beta2 = 0.95};
    for (const int64_t numel : test::kSizes) {
      for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
        if (numel > 10000 && type == DType::kFloat16) continue;
        CAPTURE(numel);
        BlockState ours(numel, 20, type);
        BlockState other = ours;
        for (int step = 1; step <= (numel > 10000 ? 2 : 6); ++step) {
          const double correction = 1 / (1 - std::pow(0.8, step));
          ours.state.step =
              other.state.step = {step, correction, std::sqrt(1 - std::pow(0.95, step))};
          const float scale = step % 2 == 0 ? 0.7F : 1.0F;
          const std::vector<BlockSegment> segments{ours.segment(/*with_copy=*/true), {}};
          update_blocks(stream, segments, rule, {.grad_scale = &scale});
          stream.synchronize();
          plain_update(stream, other, rule, scale);
          other.state.first = ours.state.first;  // not part of the state
          other.state.second = ours.state.second;
        }
        CHECK(ours.differences(other) == 0);
        // A step that is skipped changes nothing.
        const float found_inf = 1;
        const BlockSegment segment = ours.segment(/*with_copy=*/true);
        update_blocks(stream, {&segment, 1}, rule, {.found_inf = &found_inf});
        stream.synchronize();
        CHECK(ours.differences(other) == 0);
      }
    }
  });
}

TEST_CASE("zeros stay zero, and a gradient of NaN is seen in its block only") {
  const auto stream = test::make_stream("blocks");
  BlockState state(3 * kQuantizedBlock, 90);
  for (int moment = 0; moment < 2; ++moment) {
    std::fill(state.codes[moment].begin(), state.codes[moment].end(), uint8_t{0});
    std::fill(state.absmax[moment].begin(), state.absmax[moment].end(), 0.0F);
  }
  std::fill_n(state.state.param.begin(), kQuantizedBlock, 0.0F);
  std::fill_n(state.state.grad.begin(), kQuantizedBlock, 0.0F);
  state.state.step = {.step = 1, .inverse_correction1 = 10, .root_correction2 = 0.03};
  state.state.grad[kQuantizedBlock + 3] = std::numeric_limits<float>::quiet_NaN();
  const BlockSegment segment = state.segment(false);
  update_blocks(*stream, {&segment, 1}, AdamW{});
  CHECK(state.state.param[5] == 0);
  CHECK(state.absmax[0][0] == 0);
  CHECK(value_of_code<true>(state.codes[0][5]) == 0);
  CHECK(value_of_code<false>(state.codes[1][5]) == 0);
  CHECK(std::isnan(state.absmax[0][1]));
  CHECK(std::isnan(state.state.param[kQuantizedBlock + 3]));
  CHECK(std::isfinite(state.state.param[kQuantizedBlock + 4]));
  CHECK(state.absmax[0][2] > 0);
}

TEST_CASE("a copy of a dtype that is not narrow is refused") {
  const auto stream = test::make_stream("blocks");
  BlockState state(10, 1);
  BlockSegment segment = state.segment(false);
  segment.elements.low_precision_dtype = DType::kFloat32;
  CHECK_THROWS_WITH_AS(update_blocks(*stream, {&segment, 1}, AdamW{}),
                       doctest::Contains("update_blocks"), InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
