#include <fmt/format.h>
#include <fsdp/safetensors_folder_writer.h>

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/atomic_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_index.h"

namespace fsdp {
namespace {

constexpr size_t kMaxShards = 99'999;

// Returns "model-00002-of-00003.safetensors".
std::string shard_name(size_t number, size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

bool is_shard_name(std::string_view name) {
  const std::string pattern = shard_name(0, 0);
  return std::ranges::equal(name, pattern, [](char c, char expected) {
    return expected == '0' ? c >= '0' && c <= '9' : c == expected;
  });
}

// Distributes tensors to files in order; each file is filled up to the limit. A shape whose size
// overflows counts as 0 here, and the file's writer refuses it later.
std::vector<std::vector<TensorSpec>> cut(std::vector<TensorSpec> tensors, int64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> files(1);
  int64_t bytes = 0;
  for (TensorSpec& tensor : tensors) {
    const auto count = count_elements(tensor.dtype, tensor.shape);
    const int64_t more = count ? count->nbytes : 0;
    if (!files.back().empty() && more > max_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(std::move(tensor));
    // The sum is limited to max_bytes, because a sum of claimed sizes could overflow.
    bytes = std::min(max_bytes, bytes + std::min(more, max_bytes));
  }
  return files;
}

[[noreturn]] void refuse_shards(const std::filesystem::path& folder, std::string what) {
  throw InvalidArgument({.what = std::move(what), .where = folder.string()});
}

std::vector<std::string> weights_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename();
    if (is_weights_name(name)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

struct SafetensorsFolderWriter::State {
  State(std::filesystem::path path, std::vector<TensorSpec> tensors, const ShardOptions& options);

  void remove_earlier();

  std::filesystem::path folder;
  std::vector<SafetensorsWriter> files;
  std::map<std::string, size_t, std::less<>> file_of_tensor;
  std::set<std::string> names;  // names of files
  SafetensorsIndex index;       // empty if there is one file
};

SafetensorsFolderWriter::State::State(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                      const ShardOptions& options)
    : folder(std::move(path)) {
  if (options.max_shard_bytes <= 0) {
    refuse_shards(
        folder, fmt::format("max_shard_bytes is {}, expected 1 or more", options.max_shard_bytes));
  }
  std::vector<std::vector<TensorSpec>> parts = cut(std::move(tensors), options.max_shard_bytes);
  if (parts.size() > kMaxShards) {
    refuse_shards(folder, fmt::format("the model needs {} shards, at most {} are allowed",
                                      parts.size(), kMaxShards));
  }
  int64_t total_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = parts.size() == 1 ? kWeightsFile : shard_name(i + 1, parts.size());
    for (const TensorSpec& tensor : parts[i]) {
      // Each file's writer sees only its own tensors, so names that occur twice across files are
      // detected here.
      if (!file_of_tensor.emplace(tensor.name, i).second) {
        refuse_shards(folder, fmt::format("tensor {} is given twice", quoted_name(tensor.name)));
      }
      if (parts.size() > 1) index.file_of_tensor.emplace(tensor.name, name);
      const auto count = count_elements(tensor.dtype, tensor.shape);
      if (count && __builtin_add_overflow(total_bytes, count->nbytes, &total_bytes)) {
        refuse_shards(folder, "the tensors' sizes overflow");
      }
    }
    // All temporary files are created now, because tensors may be appended in any order.
    files.emplace_back(folder / name, std::move(parts[i]), options.metadata);
    names.insert(name);
  }
  index.total_bytes = total_bytes;
}

// Removes the remaining files of an earlier set. The first file removed is the one that readers
// would prefer to the new set.
void SafetensorsFolderWriter::State::remove_earlier() {
  const bool one = files.size() == 1;
  remove_file(folder / (one ? kWeightsIndex : kWeightsFile));
  for (const std::string& name : weights_in(folder)) {
    // A file that has the name of a shard of the new set stays, because it is that new shard.
    if (is_shard_name(name) && !names.contains(name)) remove_file(folder / name);
  }
}

SafetensorsFolderWriter::SafetensorsFolderWriter(std::filesystem::path folder,
                                                 std::vector<TensorSpec> tensors,
                                                 ShardOptions options)
    : state_(std::make_unique<State>(std::move(folder), std::move(tensors), options)) {}
SafetensorsFolderWriter::~SafetensorsFolderWriter() = default;
SafetensorsFolderWriter::SafetensorsFolderWriter(SafetensorsFolderWriter&&) noexcept = default;
SafetensorsFolderWriter& SafetensorsFolderWriter::operator=(SafetensorsFolderWriter&&) noexcept =
    default;

int SafetensorsFolderWriter::file_count() const { return static_cast<int>(state_->files.size()); }

void SafetensorsFolderWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto at = state_->file_of_tensor.find(name);
  // If the name is unknown, the writer of the first file throws.
  state_->files[at == state_->file_of_tensor.end() ? 0 : at->second].append(name, bytes);
}

// Renames the files in an order in which no reader mixes two sets. Readers prefer
// model.safetensors. If it does not exist, they read the index and the shards that the index names.
// So one rename is enough to replace any earlier set by a single file. If new shards have names of
// an earlier set's shards, the earlier index is removed first. A reader that opens the folder after
// that and before the new index exists finds no set.
void SafetensorsFolderWriter::commit() {
  State& state = *state_;
  // All content is written to disk before a name changes, so that a full disk leaves the earlier
  // set intact.
  for (SafetensorsWriter& file : state.files) file.finish();
  std::optional<AtomicFile> index;
  if (state.files.size() > 1) {
    const std::string text = format_safetensors_index(state.index);
    index.emplace(state.folder / kWeightsIndex);
    index->write_at(0, std::as_bytes(std::span(text)));
    index->finish();
    const bool meets_earlier = std::ranges::any_of(state.names, [&](const std::string& name) {
      std::error_code ignored;
      return std::filesystem::exists(state.folder / name, ignored);
    });
    if (meets_earlier) remove_file(state.folder / kWeightsIndex);
  }
  // The shards are renamed before the index that names them.
  for (SafetensorsWriter& file : state.files) file.commit();
  if (index) index->commit();
  state.remove_earlier();
}

bool is_weights_name(std::string_view name) {
  return name == kWeightsFile || name == kWeightsIndex || is_shard_name(name);
}

}  // namespace fsdp
