#include "kernels/digest.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cstring>
#include <set>
#include <vector>

#include "kernels/support/elements.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

uint64_t digest_of(Stream& stream, const std::vector<float>& values) {
  uint64_t result = 1;
  std::vector<uint64_t> parts(kDigestParts);
  const DigestRun run{values.data(), static_cast<int64_t>(values.size() * sizeof(float)), &result,
                      parts.data()};
  digest(stream, {&run, 1});
  stream.synchronize();
  return result;
}

// Computes the digest as the header describes it.
uint64_t digest_in_words(const std::vector<float>& values) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < values.size() / 2; ++i) {
    uint64_t word;
    std::memcpy(&word, &values[2 * i], sizeof word);
    const uint64_t m = (word ^ ((i + 1) * kFactor)) * kFactor;
    const uint64_t n = (m ^ (m >> 32)) * kFactor;
    sum += n ^ (n >> 32);
  }
  return sum;
}

TEST_CASE("a digest is the header's, for every size, one for each run") {
  test::on_each_stream([](Stream& stream) {
    for (const int64_t numel : {0, 2, 4, 14, 16, 18, 1022, 40000}) {
      CAPTURE(numel);
      const std::vector<float> values = test::values(numel, 3);
      CHECK(digest_of(stream, values) == digest_in_words(values));
    }
    const std::vector<float> one = test::values(32, 1), two = test::values(64, 2);
    uint64_t results[2], parts[2][kDigestParts];
    const DigestRun runs[] = {{one.data(), 128, &results[0], parts[0]},
                              {two.data(), 256, &results[1], parts[1]}};
    digest(stream, runs);
    stream.synchronize();
    CHECK(results[0] == digest_in_words(one));
    CHECK(results[1] == digest_in_words(two));
  });
}

TEST_CASE("what optimizers and users do to values changes their digest") {
  const auto stream = test::make_stream("digest");
  std::vector<float> values(4096);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01F * static_cast<float>(i + 1);
  std::set<uint64_t> digests{digest_of(*stream, values)};
  size_t changes = 0;
  const auto changed = [&](auto change) {
    std::vector<float> other = values;
    change(other);
    digests.insert(digest_of(*stream, other));
    ++changes;
  };
  changed([](auto& v) { std::swap(v[0], v[4095]); });
  changed([](auto& v) { std::swap_ranges(v.begin(), v.begin() + 2048, v.begin() + 2048); });
  changed([](auto& v) { v.assign(v.size(), 0.0F); });
  changed([](auto& v) { v.assign(v.size(), 1.0F); });
  for (const float factor : {-1.0F, 0.5F, 2.0F, 1.0001F}) {
    changed([&](auto& v) {
      for (float& each : v) each *= factor;
    });
    for (size_t at = 0; at < 4096; at += 511) {
      changed([&](auto& v) { v[at] *= factor; });
      changed([&](auto& v) { v[at] *= factor, v[(at + 2) % 4096] *= factor; });
    }
  }
  CHECK(digests.size() == changes + 1);
}

TEST_CASE("a size that is no multiple of 8 is refused") {
  const auto stream = test::make_stream("digest");
  const float value = 0;
  uint64_t result;
  const DigestRun run{&value, 4, &result, nullptr};
  CHECK_THROWS_WITH_AS(digest(*stream, {&run, 1}),
                       "digest: a run has 4 bytes, expected a multiple of 8; hint: pass sizes that "
                       "are multiples of 8",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels
