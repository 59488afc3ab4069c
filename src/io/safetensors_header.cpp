#include "io/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_kind.h"
#include "io/json_text.h"

namespace fsdp {
namespace {

constexpr JsonLimits kHeaderLimits{.depth = 8, .string_bytes = 2 << 20};

// The entry of a tensor while it is parsed.
struct Entry {
  StoredTensor
      tensor;  // offset_bytes counts from the end of the header until the layout is checked
  std::optional<StoredDType> dtype;
  bool has_shape = false;
  std::vector<int64_t> offsets;
  bool has_offsets = false;
};

// A handler for the text {"__metadata__": {…}, NAME: {"dtype": …, "shape": […], "data_offsets":
// [begin, end]}, …}.
class HeaderEvents final : public JsonEvents {
 public:
  explicit HeaderEvents(SafetensorsLayout& layout) : layout_(layout) {}

  void on_null() override { unexpected("null"); }
  void on_boolean(bool) override { unexpected("a boolean"); }
  void on_negative(int64_t value) override { unexpected(fmt::format("the number {}", value)); }
  void on_real(double value) override { unexpected(fmt::format("the number {}", value)); }

  void on_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      unexpected(fmt::format("the number {}", value));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse(fmt::format("the {} {} is too large", noun(), value));
    }
    std::vector<int64_t>& list = place_ == Place::kShape ? entry_.tensor.shape : entry_.offsets;
    // The limit is checked while the list is read, so that a hostile shape cannot grow.
    if (place_ == Place::kShape && std::ssize(list) == kMaxDimensions) {
      refuse(fmt::format("more than {} dimensions", kMaxDimensions));
    }
    if (place_ == Place::kOffsets && list.size() == 2)
      refuse("data_offsets has more than 2 values");
    list.push_back(static_cast<int64_t>(value));
  }

  void on_string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      layout_.metadata.emplace(std::move(key_), std::move(value));
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      entry_.dtype = stored_dtype_from_name(value);
      if (!entry_.dtype) refuse(fmt::format("unknown dtype {}", quoted_name(value)));
    } else {
      unexpected("a string");
    }
  }

  void on_key(std::string& key) override {
    // The limit is for the sum of tensors and metadata entries. The three keys within a tensor's
    // entry do not count.
    if (place_ != Place::kTensor && ++entries_ > kMaxEntries) {
      fail(fmt::format("the header has more than {} tensors and metadata entries", kMaxEntries),
           "split the file into shards");
    }
    if (place_ == Place::kTop) {
      entry_ = {};
      entry_.tensor.name = key;
    } else if (place_ == Place::kTensor && key != "dtype" && key != "shape" &&
               key != "data_offsets") {
      refuse(fmt::format("unknown key {}", quoted_name(key)));
    }
    key_ = std::move(key);
  }

  void start_object() override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
    } else {
      unexpected("an object");
    }
  }

  void end_object() override {
    if (place_ == Place::kTensor) finish_tensor();
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
  }

  void start_array() override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      entry_.has_shape = true;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      entry_.has_offsets = true;
    } else {
      unexpected("an array");
    }
  }

  void end_array() override {
    if (place_ == Place::kOffsets && entry_.offsets.size() != 2) {
      refuse(fmt::format("data_offsets has {} values instead of 2", entry_.offsets.size()));
    }
    place_ = Place::kTensor;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] void refuse(const std::string& what) const {
    fail(fmt::format("tensor {}: {}", quoted_name(entry_.tensor.name), what));
  }

  std::string_view noun() const { return place_ == Place::kShape ? "dimension" : "offset"; }

  [[noreturn]] void unexpected(const std::string& found) const {
    switch (place_) {
      case Place::kOutside:
        fail(fmt::format("the header is {} instead of an object", found));
      case Place::kMetadata:
        fail(fmt::format("metadata {} is {} instead of a string", quoted_name(key_), found));
      case Place::kTop:
        if (key_ == kMetadataKey) fail(fmt::format("the metadata is {}, not an object", found));
        refuse(fmt::format("{} instead of an object", found));
      case Place::kTensor:
        refuse(fmt::format("{} is {}, not {}", key_, found,
                           key_ == "dtype" ? "a string" : "an array of unsigned integers"));
      default:
        refuse(fmt::format("{} instead of an unsigned integer as {}", found, noun()));
    }
  }

  // Keys may be in any order, so a tensor is checked when its entry ends.
  void finish_tensor() {
    if (!entry_.dtype) refuse("dtype is missing");
    if (!entry_.has_shape) refuse("shape is missing");
    if (!entry_.has_offsets) refuse("data_offsets is missing");
    StoredTensor& tensor = entry_.tensor;
    tensor.dtype = *entry_.dtype;
    const auto [begin, end] = std::array{entry_.offsets[0], entry_.offsets[1]};
    if (end < begin)
      refuse(fmt::format("data_offsets end at {} before they begin at {}", end, begin));
    const auto count = count_elements(tensor.dtype, tensor.shape);
    const std::string what =
        fmt::format("{} of shape {}", name_of(tensor.dtype), format_shape(tensor.shape));
    if (!count) refuse(fmt::format("{} has no size in bytes", what));
    if (end - begin != count->nbytes) {
      refuse(fmt::format("{} needs {} bytes, but data_offsets has {}", what, count->nbytes,
                         end - begin));
    }
    tensor.numel = count->numel;
    tensor.nbytes = count->nbytes;
    tensor.offset_bytes = begin;
    layout_.tensors.push_back(std::move(tensor));
  }

  SafetensorsLayout& layout_;
  Place place_ = Place::kOutside;
  int64_t entries_ = 0;
  std::string key_;
  Entry entry_;
};

[[noreturn]] void corrupt(const std::string& file, int64_t byte, std::string what,
                          std::string hint = {}) {
  throw IoError(ExitCode::kCorruptData, {.what = std::move(what),
                                         .where = fmt::format("{}, byte {}", file, byte),
                                         .hint = std::move(hint)});
}

// Returns the text of the header. Reads at most kKindBytes bytes before the size is checked.
std::string_view header_of(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view whole(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const FileKind kind = file_kind(whole);
  if (kind != FileKind::kSafetensors) refuse_other_kind(whole, file, "a weight file");
  const auto file_bytes = static_cast<int64_t>(bytes.size());
  if (file_bytes < kSafetensorsPrefixBytes) {
    corrupt(file, file_bytes,
            fmt::format("a file of {} bytes cannot be a safetensors file", file_bytes));
  }
  // The number is read byte by byte in little-endian order, because the prefix may be at any
  // address.
  uint64_t claimed = 0;
  for (int i = 7; i >= 0; --i) claimed = claimed << 8 | static_cast<uint64_t>(bytes[i]);
  if (claimed > static_cast<uint64_t>(kMaxHeaderBytes)) {
    corrupt(
        file, 0,
        fmt::format("the header claims {} bytes; at most {} are allowed", claimed, kMaxHeaderBytes),
        fmt::format("check that it is a safetensors file: it begins as {}", name_of(kind)));
  }
  const auto header_bytes = static_cast<int64_t>(claimed);
  if (header_bytes > file_bytes - kSafetensorsPrefixBytes) {
    corrupt(file, file_bytes,
            fmt::format("the file ends within its header: {} bytes, but the header claims {}",
                        file_bytes, header_bytes),
            "fetch the file again: it may be truncated");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kSafetensorsPrefixBytes,
                              static_cast<size_t>(header_bytes));
  if (!text.starts_with('{')) {
    corrupt(file, kSafetensorsPrefixBytes, "the header does not start with '{'");
  }
  return text;
}

// Removes the padding, which must be spaces. JSON would also allow line ends and tabs there.
std::string_view without_padding(std::string_view text, const std::string& file) {
  const size_t last = text.find_last_not_of(' ');
  if (text[last] != '}') {
    corrupt(file, kSafetensorsPrefixBytes + static_cast<int64_t>(last),
            "the header does not end with '}' and padding spaces");
  }
  return text.substr(0, last + 1);
}

// Checks that the byte ranges follow each other from the end of the header to the end of the file,
// without gap or overlap. Changes the offsets so that they count from the start of the file.
void bind_tensors(SafetensorsLayout& layout, int64_t data_begin, int64_t file_bytes,
                  const std::string& file) {
  // The size is a second sort key, so that an empty tensor precedes a tensor that begins at the
  // same offset.
  std::ranges::stable_sort(layout.tensors, {}, [](const StoredTensor& tensor) {
    return std::pair(tensor.offset_bytes, tensor.nbytes);
  });
  int64_t at = 0;
  for (StoredTensor& tensor : layout.tensors) {
    if (tensor.offset_bytes != at) {
      corrupt(
          file, data_begin + std::min(at, tensor.offset_bytes),
          fmt::format("{} tensor {}: it begins at offset {}, but the tensor before it ends at {}",
                      tensor.offset_bytes < at ? "an overlap with" : "a hole before",
                      quoted_name(tensor.name), tensor.offset_bytes, at));
    }
    if (tensor.nbytes > file_bytes - data_begin - at) {
      corrupt(file, file_bytes,
              fmt::format("the file ends within tensor {}: {} bytes of data, {} needed",
                          quoted_name(tensor.name), file_bytes - data_begin, at + tensor.nbytes),
              "fetch the file again: it may be truncated");
    }
    tensor.offset_bytes = data_begin + at;
    at += tensor.nbytes;
  }
  if (at != file_bytes - data_begin) {
    corrupt(file, data_begin + at,
            fmt::format("{} bytes follow the last tensor", file_bytes - data_begin - at));
  }
}

}  // namespace

std::optional<ElementCount> count_elements(StoredDType dtype, std::span<const int64_t> shape) {
  // The product is checked after each dimension, so [2^62, 2^62, 0] is refused although it has no
  // element. Other readers also refuse it.
  std::optional<int64_t> numel = 1;
  for (const int64_t size : shape) {
    numel = checked_product(*numel, size);
    if (!numel) return std::nullopt;
  }
  const auto bits = checked_product(*numel, bits_of(dtype));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return ElementCount{.numel = *numel, .nbytes = *bits / 8};
}

std::string format_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsLayout parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view header = header_of(bytes, file);
  SafetensorsLayout layout;
  HeaderEvents events(layout);
  parse_json({.text = without_padding(header, file),
              .file = file,
              .first_byte = kSafetensorsPrefixBytes,
              .one_line = true},
             events, kHeaderLimits);
  bind_tensors(layout, kSafetensorsPrefixBytes + std::ssize(header), std::ssize(bytes), file);
  return layout;
}

}  // namespace fsdp
