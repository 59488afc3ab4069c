#include <fmt/format.h>
#include <fsdp/engine.h>
#include <fsdp/safetensors_folder_writer.h>

#include <optional>

#include "checkpoint/rank_zero_writer.h"
#include "fsdp/checkpoint.h"
#include "fsdp/error.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

constexpr std::string_view kWriting = "writing the model";

at::ScalarType type_of_file(const SaveOptions& options) {
  const at::ScalarType type = options.dtype.value_or(at::kFloat);
  const auto dtype = dtype_of(type);
  if (dtype && is_floating(*dtype)) return type;
  throw InvalidArgument(
      {.what = fmt::format("weights cannot be saved as {}", torch_compat::type_name(type)),
       .where = "SaveOptions::dtype",
       .hint = "use float32, bfloat16, float16 or float64"});
}

using Tensors = std::vector<TensorSpec>;

// Writes all parameters with the writer that `open` creates on rank 0.
template <class Open>
Outcome write_weights(Engine& engine, const SaveOptions& options, const Open& open) {
  const at::ScalarType type = type_of_file(options);
  const auto stored_name = [&](std::string_view fqn) {
    return options.stored_name ? options.stored_name(fqn) : std::string(fqn);
  };
  // `writer` is set on rank 0 only.
  std::optional<decltype(open(Tensors()))> writer;
  RankZeroWriter on_zero(engine.mesh(), kWriting);
  // Every rank calls sharded_parameters, although only rank 0 needs the result. The call makes the
  // engine check its shards for changes from then on, and all ranks must do the same checks.
  const std::vector<ShardedParameter> parameters = engine.sharded_parameters();
  on_zero.write([&] {
    Tensors specs;
    for (const ShardedParameter& parameter : parameters) {
      specs.push_back({.name = stored_name(parameter.fqn),
                       .dtype = stored_dtype(type),
                       .shape = parameter.shape});
    }
    writer.emplace(open(std::move(specs)));
  });
  // The visit cannot be stopped: after a failure all ranks still gather the remaining units, but
  // write nothing.
  engine.visit_full_parameters([&](std::string_view fqn, const at::Tensor& value) {
    // The tensor is converted here and not in the work of on_zero. That work runs on another
    // thread, and its operators would not be ordered after those on this thread's stream.
    const at::Tensor rows =
        engine.mesh().rank() == 0 ? value.to(at::kCPU, type).contiguous() : at::Tensor();
    on_zero.write([&] {
      writer->append(stored_name(fqn), {static_cast<const std::byte*>(rows.const_data_ptr()),
                                        static_cast<size_t>(rows.nbytes())});
    });
  });
  on_zero.write([&] { writer->commit(); });
  return on_zero.outcome();
}

}  // namespace

Outcome try_to_save_weights(Engine& engine, const std::filesystem::path& file,
                            const SaveOptions& options) {
  return write_weights(engine, options, [&](Tensors tensors) {
    return SafetensorsWriter(file, std::move(tensors), options.metadata);
  });
}

void save_weights(Engine& engine, const std::filesystem::path& file, const SaveOptions& options) {
  throw_on_all_ranks(engine.mesh(), try_to_save_weights(engine, file, options));
}

Outcome try_to_save_weights_folder(Engine& engine, const std::filesystem::path& folder,
                                   const SaveFolderOptions& options) {
  return write_weights(engine, options.weights, [&](Tensors tensors) {
    return SafetensorsFolderWriter(
        folder, std::move(tensors),
        {.max_shard_bytes = options.max_shard_bytes, .metadata = options.weights.metadata});
  });
}

void save_weights_folder(Engine& engine, const std::filesystem::path& folder,
                         const SaveFolderOptions& options) {
  throw_on_all_ranks(engine.mesh(), try_to_save_weights_folder(engine, folder, options));
}

}  // namespace fsdp
