#include "model_weights.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "data/printable_name.h"
#include "data/weight_match.h"

namespace bert_qa {
namespace {

constexpr int64_t kChunkNumel = 1 << 20;

at::ScalarType scalar_type(fsdp::StoredDType dtype) {
  switch (dtype) {
    case fsdp::StoredDType::kF16:
      return at::kHalf;
    case fsdp::StoredDType::kBF16:
      return at::kBFloat16;
    case fsdp::StoredDType::kF64:
      return at::kDouble;
    default:  // matching lets no other type through
      return at::kFloat;
  }
}

bool is_head(std::string_view fqn) { return fqn.starts_with("qa_outputs."); }

std::vector<fsdp::ExpectedTensor> expected_tensors(
    std::span<const fsdp::ShardedParameter> parameters) {
  std::vector<fsdp::ExpectedTensor> expected;
  for (const fsdp::ShardedParameter& parameter : parameters) {
    expected.push_back({.name = parameter.fqn,
                        .shape = parameter.shape,
                        .may_be_missing = is_head(parameter.fqn)});
  }
  return expected;
}

// Copies in pieces through a small aligned tensor: a file's bytes lie at any address.
void copy_interval(const fsdp::TensorSource& source, const fsdp::ShardedParameter& parameter) {
  const at::ScalarType type = scalar_type(source.tensor->dtype);
  const int64_t item_bytes = fsdp::bits_of(source.tensor->dtype) / 8;
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
void check_finite(const fsdp::TensorSource& source, const fsdp::ShardedParameter& parameter) {
  const std::span values(parameter.local.const_data_ptr<float>(),
                         static_cast<size_t>(parameter.local.numel()));
  // One pass that the compiler vectorises; a second one to name the place.
  bool finite = true;
  for (const float value : values) finite &= std::abs(value) <= std::numeric_limits<float>::max();
  if (finite) return;
  const auto at =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                      {.what = fmt::format("tensor {} is not finite: element {} is {}",
                                           fsdp::quoted_name(source.tensor->name),
                                           parameter.begin + (at - values.begin()), *at),
                       .where = source.file->path().string(),
                       .hint = "the model was broken when it was saved; take an earlier one"});
}

}  // namespace

std::vector<std::string> load_weights(fsdp::Engine& engine, const fsdp::ModelFolder& folder,
                                      const fsdp::SafetensorsFile* head) {
  const at::NoGradGuard no_grad;
  const std::vector<fsdp::ShardedParameter> parameters = engine.sharded_parameters();
  const fsdp::MatchedWeights matched =
      fsdp::match_weights(folder, expected_tensors(parameters), head);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!matched.sources[i]) continue;
    copy_interval(*matched.sources[i], parameters[i]);
    check_finite(*matched.sources[i], parameters[i]);
  }
  return matched.notes;
}

void load_head(fsdp::Engine& engine, const fsdp::SafetensorsFile& head) {
  const at::NoGradGuard no_grad;
  for (const fsdp::ShardedParameter& parameter : engine.sharded_parameters()) {
    if (!is_head(parameter.fqn)) continue;
    const fsdp::StoredTensor* stored = head.find(parameter.fqn);
    if (stored == nullptr || stored->shape != parameter.shape ||
        stored->dtype != fsdp::StoredDType::kF32) {
      throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                          {.what = "no float32 tensor " + parameter.fqn + " of the model's shape",
                           .where = head.path().string()});
    }
    const fsdp::TensorSource source{.file = &head, .tensor = stored};
    copy_interval(source, parameter);
    check_finite(source, parameter);
  }
}

Outcome save_weights(fsdp::Engine& engine, const std::filesystem::path& file) {
  std::optional<fsdp::SafetensorsWriter> writer;
  const fsdp::Mesh& mesh = engine.mesh();
  Outcome outcome;
  const auto write = [&](const std::function<void()>& work) {
    if (outcome.failed()) return;
    outcome = work_together(mesh, kWritingModel, [&] {
      if (mesh.rank() == 0) work();
    });
  };
  write([&] {
    std::vector<fsdp::TensorSpec> specs;
    for (const fsdp::ShardedParameter& parameter : engine.sharded_parameters()) {
      specs.push_back({.name = parameter.fqn, .shape = parameter.shape});
    }
    writer.emplace(file, std::move(specs));
  });
  engine.visit_full_parameters([&](std::string_view fqn, const at::Tensor& value) {
    const at::Tensor rows = mesh.rank() == 0 ? value.contiguous() : at::Tensor();
    write([&] {
      writer->append(fqn, {static_cast<const std::byte*>(rows.const_data_ptr()),
                           static_cast<size_t>(rows.nbytes())});
    });
  });
  write([&] { writer->commit(); });
  return outcome;
}

}  // namespace bert_qa
