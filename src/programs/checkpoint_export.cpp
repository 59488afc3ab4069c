#include "programs/checkpoint_export.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "fsdp/whole_file.h"
#include "io/checkpoint_tensors.h"
#include "io/disk.h"
#include "io/name_list.h"
#include "io/new_file.h"
#include "io/safetensors_header.h"
#include "kernels/element_cast.h"
#include "programs/row_major_reader.h"

namespace fsdp {
namespace {

constexpr size_t kConvertedNumel = 1 << 18;

// The output folder. Unless keep() is called, the destructor removes the files of weights, and the
// folders that the constructor has created.
class OutputFolder {
 public:
  explicit OutputFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
    require_empty();
    std::error_code error;
    for (std::filesystem::path path = std::filesystem::absolute(folder_, error).lexically_normal();
         !std::filesystem::exists(path, error) && path.has_relative_path();
         path = path.parent_path()) {
      if (path.has_filename()) created_.push_back(path);
    }
    std::filesystem::create_directories(folder_, error);
    if (!error && std::filesystem::is_directory(folder_, error)) return;
    remove();
    refuse("cannot be created", error ? error.message() : "a file has this name",
           "choose a writable folder");
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder() {
    if (!kept_) remove();
  }

  // Syncs the names of the created folders, so that the weights survive a loss of power.
  void keep() {
    for (const std::filesystem::path& path : created_) {
      sync_names(Disk::system(), path.parent_path());
    }
    kept_ = true;
  }

 private:
  void require_empty() const {
    std::error_code error;
    if (!std::filesystem::is_directory(folder_, error)) return;
    remove_leftovers(folder_, is_weights_name);  // of an export that was killed
    if (std::filesystem::is_empty(folder_, error) && !error) return;
    refuse(error ? "cannot be read" : "is not empty", error ? error.message() : "",
           "choose a new folder");
  }

  [[noreturn]] void refuse(std::string_view what, std::string cause, std::string hint) const {
    throw IoError(ExitCode::kCannotCreate, {.what = fmt::format("the output folder {}", what),
                                            .where = folder_.string(),
                                            .cause = std::move(cause),
                                            .hint = std::move(hint)});
  }

  void remove() const {
    std::error_code ignored;
    std::vector<std::filesystem::path> files;
    for (std::filesystem::directory_iterator entry(folder_, ignored), end; entry != end;
         entry.increment(ignored)) {
      if (is_weights_name(entry->path().filename().string())) files.push_back(entry->path());
    }
    for (const std::filesystem::path& file : files) ::unlink(file.c_str());
    for (const std::filesystem::path& path : created_) ::rmdir(path.c_str());
  }

  const std::filesystem::path folder_;
  std::vector<std::filesystem::path> created_;  // innermost first
  bool kept_ = false;
};

// A tensor to write.
struct ExportedTensor {
  std::string name;
  TensorView from;
  StoredDType dtype = StoredDType::kF32;  // in the file
  bool is_parameter = false;
};

class Export {
 public:
  Export(const std::filesystem::path& checkpoint, const ExportOptions& options)
      : checkpoint_(checkpoint), options_(options) {
    require_engine();
    const std::vector<ManifestTensor>& tensors = checkpoint_.manifest().tensors;
    for (int64_t i = 0; i < std::ssize(tensors); ++i) add(i, tensors[static_cast<size_t>(i)]);
  }

  ExportReport write(const std::filesystem::path& folder) {
    OutputFolder output(folder);
    std::vector<TensorSpec> specs;
    for (const ExportedTensor& each : tensors_) {
      specs.push_back({each.name, each.dtype, each.from.shape});
      // The manifest's reader has checked that sizes do not overflow.
      report_.bytes += count_elements(each.dtype, each.from.shape)->nbytes;
    }
    report_.tensors = std::ssize(specs);
    require_space(folder);
    {
      SafetensorsFolderWriter writer(folder, std::move(specs),
                                     {.max_shard_bytes = options_.max_shard_bytes});
      report_.files = writer.file_count();
      for (const ExportedTensor& each : tensors_) append(writer, each);
      writer.commit();
    }
    output.keep();
    return std::move(report_);
  }

 private:
  void require_engine() const {
    std::vector<std::string> engines;
    for (const ManifestObject& object : checkpoint_.manifest().objects) {
      if (object.kind != "Engine") continue;
      if (object.name == options_.object) return;
      engines.push_back(object.name);
    }
    throw InvalidArgument(
        {.what = fmt::format("the checkpoint has no engine {}", quoted_name(options_.object)),
         .where = checkpoint_.folder().string(),
         .hint = engines.empty() ? "" : fmt::format("use --object with {}", list_of(engines))},
        ExitCode::kUsage);
  }

  // Adds the tensor if it is a parameter or a buffer of the engine.
  void add(int64_t index, const ManifestTensor& tensor) {
    std::string_view name = tensor.name;
    const auto has_prefix = [&](std::string_view kind) {
      const std::string prefix = fmt::format("{}/{}/", options_.object, kind);
      if (!name.starts_with(prefix)) return false;
      name.remove_prefix(prefix.size());
      return true;
    };
    TensorView from{.index = index, .shape = tensor.shape, .strides = tensor.strides};
    if (has_prefix("weight")) {
      if (tensor.dtype != StoredDType::kF32) {
        refuse(fmt::format("parameter {} has type {}, expected F32", quoted_name(tensor.name),
                           name_of(tensor.dtype)));
      }
      tensors_.push_back({std::string(name), std::move(from), options_.dtype, true});
      return;
    }
    const bool by_rank = has_prefix("buffer_by_rank");
    if (!by_rank && !has_prefix("buffer")) return;
    if (by_rank) {
      // The first dimension is the rank.
      if (from.shape.empty() || from.shape.front() == 0) {
        refuse(fmt::format("{} has no row of rank 0", quoted_name(tensor.name)));
      }
      from.shape.erase(from.shape.begin());
      from.strides.erase(from.strides.begin());
      report_.notes.push_back(fmt::format(
          "buffer {} differs between ranks: rank 0's values are written", quoted_name(name)));
    }
    tensors_.push_back({std::string(name), std::move(from), tensor.dtype, false});
  }

  [[noreturn]] void refuse(std::string what) const {
    throw IoError(ExitCode::kCorruptData, {.what = std::move(what),
                                           .where = checkpoint_.folder().string(),
                                           .hint = "export an earlier checkpoint"});
  }

  void require_space(const std::filesystem::path& folder) const {
    const std::optional<int64_t> available = available_bytes(folder);
    if (!available || *available >= report_.bytes) return;
    throw IoError(ExitCode::kIoError,
                  {.what = fmt::format("the weights need {}, but the disk has {} free",
                                       format_bytes(report_.bytes), format_bytes(*available)),
                   .where = folder.string(),
                   .hint = "free some space, or choose another disk"});
  }

  void append(SafetensorsFolderWriter& writer, const ExportedTensor& tensor) {
    int64_t done = 0;  // elements
    read_row_major(checkpoint_, tensor.from, [&](std::span<const std::byte> piece) {
      if (!tensor.is_parameter) return writer.append(tensor.name, piece);
      const std::span values(reinterpret_cast<const float*>(piece.data()),
                             piece.size() / sizeof(float));
      for (size_t at = 0; at < values.size(); at += kConvertedNumel) {
        const auto part = values.subspan(at, std::min(kConvertedNumel, values.size() - at));
        require_finite(tensor, part, done + static_cast<int64_t>(at));
        append_values(writer, tensor, part, done + static_cast<int64_t>(at));
      }
      done += std::ssize(values);
    });
  }

  void append_values(SafetensorsFolderWriter& writer, const ExportedTensor& tensor,
                     std::span<const float> values, int64_t begin) {
    switch (tensor.dtype) {
      case StoredDType::kBF16:
        return append_converted<kernels::BFloat16>(writer, tensor, values, begin);
      case StoredDType::kF16:
        return append_converted<kernels::Float16>(writer, tensor, values, begin);
      default:
        return writer.append(tensor.name, std::as_bytes(values));
    }
  }

  // Rounds to the nearest even value, as LibTorch does.
  template <class To>
  void append_converted(SafetensorsFolderWriter& writer, const ExportedTensor& tensor,
                        std::span<const float> values, int64_t begin) {
    std::vector<To> converted(values.size());
    std::ranges::transform(values, converted.begin(),
                           [](float value) { return kernels::from_float<To>(value); });
    const auto infinite = std::ranges::find_if(
        converted, [](To value) { return std::isinf(kernels::to_float(value)); });
    if (infinite != converted.end()) {
      const int64_t at = infinite - converted.begin();
      throw InvalidArgument(
          {.what = fmt::format("element {} of {} is {}, which is too large for {}", begin + at,
                               quoted_name(tensor.name), values[static_cast<size_t>(at)],
                               name_of(tensor.dtype)),
           .where = checkpoint_.folder().string(),
           .hint = "use --dtype float32"});
    }
    writer.append(tensor.name, std::as_bytes(std::span<const To>(converted)));
  }

  void require_finite(const ExportedTensor& tensor, std::span<const float> values,
                      int64_t begin) const {
    const auto bad =
        std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) return;
    refuse(fmt::format("parameter {} is not finite: element {} is {}", quoted_name(tensor.name),
                       begin + (bad - values.begin()), *bad));
  }

  CheckpointTensors checkpoint_;
  const ExportOptions& options_;
  std::vector<ExportedTensor> tensors_;
  ExportReport report_;
};

}  // namespace

ExportReport export_weights(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& folder, const ExportOptions& options) {
  return Export(checkpoint, options).write(folder);
}

}  // namespace fsdp
