#include <fsdp/safetensors.h>

#include <algorithm>
#include <numeric>

#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace fsdp {

// The state is on the heap, so that spans of bytes and pointers to tensors stay valid when the
// SafetensorsFile moves.
struct SafetensorsFile::State {
  explicit State(std::filesystem::path from)
      : path(std::move(from)), mapping(path), layout(parse_safetensors(mapping.bytes(), path)) {
    by_name.resize(layout.tensors.size());
    std::iota(by_name.begin(), by_name.end(), 0);
    std::ranges::sort(by_name, {}, [&](size_t i) -> const std::string& { return name(i); });
  }
  const std::string& name(size_t index) const { return layout.tensors[index].name; }

  std::filesystem::path path;
  MappedFile mapping;
  SafetensorsLayout layout;
  std::vector<size_t> by_name;  // indices into layout.tensors
};

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : state_(std::make_unique<const State>(std::move(path))) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const { return state_->path; }
const std::vector<StoredTensor>& SafetensorsFile::tensors() const { return state_->layout.tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->layout.metadata;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      state_->by_name, name, {}, [&](size_t i) -> std::string_view { return state_->name(i); });
  if (at == state_->by_name.end() || state_->name(*at) != name) return nullptr;
  return &state_->layout.tensors[*at];
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return state_->mapping.bytes().subspan(static_cast<size_t>(tensor.offset_bytes),
                                         static_cast<size_t>(tensor.nbytes));
}

void SafetensorsFile::forget(std::span<const std::byte> part) const {
  state_->mapping.forget(part);
}

}  // namespace fsdp
