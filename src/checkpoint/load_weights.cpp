#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fsdp/agreement.h>
#include <fsdp/engine.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/weight_match.h"
#include "fsdp/checkpoint.h"
#include "fsdp/error.h"
#include "io/printable_name.h"

namespace fsdp {
namespace {

constexpr int64_t kChunkNumel = 1 << 20;
constexpr std::string_view kReading = "reading the weights";

at::ScalarType scalar_type(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kF16:
      return at::kHalf;
    case StoredDType::kBF16:
      return at::kBFloat16;
    case StoredDType::kF64:
      return at::kDouble;
    default:  // matching lets no other type through
      return at::kFloat;
  }
}

// Copies in pieces through a small aligned tensor: a file's bytes lie at any address.
void copy_interval(const TensorSource& source, const ShardedParameter& parameter) {
  const at::ScalarType type = scalar_type(source.tensor->dtype);
  const int64_t item_bytes = bits_of(source.tensor->dtype) / 8;
  const std::span<const std::byte> bytes = source.bytes();
  const int64_t numel = parameter.local.numel();
  const at::Tensor piece = at::empty({std::min(numel, kChunkNumel)}, type);
  for (int64_t done = 0; done < numel; done += kChunkNumel) {
    const int64_t count = std::min(kChunkNumel, numel - done);
    std::memcpy(piece.mutable_data_ptr(), bytes.data() + (parameter.begin + done) * item_bytes,
                count * item_bytes);
    parameter.local.narrow(0, done, count).copy_(piece.narrow(0, 0, count));
  }
}

// As the engine has them: a double may have become infinite.
void check_finite(const TensorSource& source, const ShardedParameter& parameter) {
  const at::Tensor host = parameter.local.to(at::kCPU);
  const std::span values(host.const_data_ptr<float>(), static_cast<size_t>(host.numel()));
  // One pass that the compiler vectorises; a second one to name the place.
  bool finite = true;
  for (const float value : values) finite &= std::abs(value) <= std::numeric_limits<float>::max();
  if (finite) return;
  const auto at =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  throw IoError(ExitCode::kCorruptData,
                {.what = fmt::format("tensor {} is not finite: element {} is {}",
                                     quoted_name(source.tensor->name),
                                     parameter.begin + (at - values.begin()), *at),
                 .where = source.file->path().string(),
                 .hint = "the model was broken when it was saved; take an earlier one"});
}

// On this rank alone.
LoadReport load_intervals(Engine& engine, std::span<const SafetensorsFile> files,
                          const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const std::vector<ShardedParameter> parameters = engine.sharded_parameters();
  std::vector<ExpectedTensor> expected;
  for (const ShardedParameter& parameter : parameters) {
    expected.push_back({.fqn = parameter.fqn, .shape = parameter.shape});
  }
  MatchedWeights matched = match_weights(files, expected, options);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!matched.sources[i]) continue;
    copy_interval(*matched.sources[i], parameters[i]);
    check_finite(*matched.sources[i], parameters[i]);
  }
  return std::move(matched.report);
}

}  // namespace

LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options) {
  LoadReport report;
  refuse_together(engine.mesh(), kReading,
                  [&] { report = load_intervals(engine, files, options); });
  return report;
}

LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options) {
  LoadReport report;
  refuse_together(engine.mesh(), kReading, [&] {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      const SafetensorsFolder folder(path);
      report = load_intervals(engine, folder.files(), options);
      report.notes.insert(report.notes.begin(), folder.notes().begin(), folder.notes().end());
    } else {
      const SafetensorsFile file(path);
      report = load_intervals(engine, {&file, 1}, options);
    }
  });
  return report;
}

}  // namespace fsdp
