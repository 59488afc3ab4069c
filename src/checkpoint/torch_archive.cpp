#include "checkpoint/torch_archive.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "io/pickle.h"
#include "io/printable_name.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kZipMagic = "PK\x03\x04";
// Of a pickle: what torch.save wrote before it wrote archives.
constexpr std::string_view kPickleMagic = "\x80\x02";
constexpr size_t kZipHeaderBytes = 30;
constexpr int64_t kMaxPickleBytes = 16 << 20;

struct Place {
  std::string where;
  [[noreturn]] void refuse(std::string what, std::string hint, std::string cause = {}) const {
    throw IoError(ExitCode::kCorruptData, {.what = std::move(what),
                                           .where = where,
                                           .cause = std::move(cause),
                                           .hint = std::move(hint)});
  }
};

class MappedReader final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MappedReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t size() const override { return bytes_.size(); }
  size_t read(uint64_t pos, void* buf, size_t n, const char*) const override {
    if (pos >= bytes_.size()) return 0;
    const size_t count = std::min(n, bytes_.size() - static_cast<size_t>(pos));
    std::memcpy(buf, bytes_.data() + pos, count);
    return count;
  }

 private:
  std::span<const std::byte> bytes_;
};

// The records of an archive, where they lie.
class Records {
 public:
  Records(std::span<const std::byte> bytes, const Place& place)
      : bytes_(bytes), place_(place), reader_(open(bytes, place)) {}

  bool has(const std::string& name) { return reader_->hasRecord(name); }
  std::span<const std::byte> bytes(const std::string& name) {
    if (!has(name))
      place_.refuse(fmt::format("the archive has no record {}", quoted_name(name)), kHint);
    try {
      const size_t header = reader_->getRecordHeaderOffset(name);
      const size_t offset = reader_->getRecordOffset(name), size = reader_->getRecordSize(name);
      const bool lies_in_file = header <= bytes_.size() &&
                                kZipHeaderBytes <= bytes_.size() - header &&
                                offset <= bytes_.size() && size <= bytes_.size() - offset;
      if (!lies_in_file) {
        place_.refuse(fmt::format("record {} ends beyond the file", quoted_name(name)), kHint);
      }
      uint16_t method = 0;
      std::memcpy(&method, bytes_.data() + header + 8, sizeof method);
      if (method != 0) {
        place_.refuse(fmt::format("record {} is compressed", quoted_name(name)),
                      "torch.save does not compress: read the file with it and save it again");
      }
      return bytes_.subspan(offset, size);
    } catch (const c10::Error& error) {
      place_.refuse(fmt::format("record {} cannot be read", quoted_name(name)), kHint,
                    std::string(message_of(error)));
    }
  }

 private:
  static constexpr const char* kHint = "the file is broken: fetch it again";

  static std::unique_ptr<caffe2::serialize::PyTorchStreamReader> open(
      std::span<const std::byte> bytes, const Place& place) {
    try {
      return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
          std::make_shared<MappedReader>(bytes));
    } catch (const std::exception& error) {
      place.refuse("the file begins as an archive of torch.save and is none", kHint,
                   std::string(message_of(error)));
    }
  }

  const std::span<const std::byte> bytes_;
  const Place& place_;
  const std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

// What the pickle says of a tensor against what is there.
class TensorReader {
 public:
  TensorReader(Records& records, const Place& place) : records_(records), place_(place) {}

  MappedTensor read(const std::string& name, const PickledTensor& tensor) {
    const auto refuse_tensor = [&](std::string_view what) {
      place_.refuse(fmt::format("tensor {} {}", quoted_name(name), what),
                    "the file is broken: fetch it again");
    };
    const int64_t item_bytes = bits_of(tensor.dtype) / 8;
    const auto count = count_elements(tensor.dtype, tensor.shape);
    if (!count || tensor.strides.size() != tensor.shape.size() || tensor.offset < 0 ||
        tensor.record_numel < 0) {
      refuse_tensor("has no size");
    }
    const std::span<const std::byte> record =
        tensor.record_numel > 0 ? record_of(tensor.record) : std::span<const std::byte>();
    if (std::ssize(record) / item_bytes != tensor.record_numel ||
        std::ssize(record) % item_bytes != 0) {
      refuse_tensor(fmt::format("is of a storage of {} {}, and its record has {} bytes",
                                tensor.record_numel, name_of(tensor.dtype), record.size()));
    }
    MappedTensor mapped{
        .name = name, .dtype = tensor.dtype, .shape = tensor.shape, .strides = tensor.strides};
    if (count->numel == 0) return mapped;
    int64_t last = tensor.offset;  // its last element, in the record
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      int64_t reach = 0;
      if (tensor.strides[i] < 0 ||
          __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        last = tensor.record_numel;
        break;
      }
    }
    if (last >= tensor.record_numel) {
      refuse_tensor(
          fmt::format("of shape {}, strides {} and offset {} goes beyond its storage of {}",
                      format_shape(tensor.shape), format_shape(tensor.strides), tensor.offset,
                      tensor.record_numel));
    }
    mapped.bytes = record.subspan(static_cast<size_t>(tensor.offset * item_bytes),
                                  static_cast<size_t>((last - tensor.offset + 1) * item_bytes));
    return mapped;
  }

 private:
  std::span<const std::byte> record_of(const std::string& key) {
    const auto found = records_by_key_.find(key);
    if (found != records_by_key_.end()) return found->second;
    return records_by_key_[key] = records_.bytes("data/" + key);
  }

  Records& records_;
  const Place& place_;
  std::map<std::string, std::span<const std::byte>> records_by_key_;
};

// Goes through a state_dict, or a module's attributes.
class TensorWalk {
 public:
  TensorWalk(TensorReader& reader, const Place& place) : reader_(reader), place_(place) {}

  // `nested`: whether entries that are modules again are looked into.
  void walk(const PickleValue& dict, const std::string& prefix, bool nested, int depth) {
    if (depth > kMaxDepth) place_.refuse("modules within modules without an end", kHint);
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& key = *dict.items[i];
      const PickleValue& value = *dict.items[i + 1];
      if (++visits_ > kMaxVisits) place_.refuse("modules within modules without an end", kHint);
      if (key.kind != Kind::kText) place_.refuse("a key of the state_dict is no text", kHint);
      const std::string name = prefix + key.text;
      if (value.kind == Kind::kTensor) {
        if (std::ssize(tensors_) == kMaxEntries) {
          place_.refuse(fmt::format("more than {} tensors", kMaxEntries),
                        "save it in several files");
        }
        tensors_.push_back(reader_.read(name, *value.tensor));
      } else if (nested && value.kind == Kind::kObject && !value.items.empty()) {
        walk(*value.items[0], name + ".", true, depth + 1);
      }
    }
  }
  std::vector<MappedTensor> take() { return std::move(tensors_); }

 private:
  static constexpr const char* kHint = "save model.state_dict() with torch.save";
  static constexpr int kMaxDepth = 64;
  static constexpr int64_t kMaxVisits = 1 << 20;  // a file may hold one module many times

  TensorReader& reader_;
  const Place& place_;
  int64_t visits_ = 0;
  std::vector<MappedTensor> tensors_;
};

bool holds_tensors(const PickleValue& dict) {
  for (size_t i = 1; i < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::kTensor) return true;
  }
  return false;
}

// The entry that is a state_dict, in a training script's own dict.
std::optional<std::string_view> nested_state_dict(const PickleValue& dict,
                                                  const PickleValue*& found) {
  constexpr std::array<std::string_view, 3> kKeys{"state_dict", "model_state_dict", "model"};
  for (const std::string_view key : kKeys) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& value = *dict.items[i + 1];
      if (dict.items[i]->text != key || value.kind != Kind::kDict || !holds_tensors(value))
        continue;
      found = &value;
      return key;
    }
  }
  return std::nullopt;
}

std::array<char, 9> first_bytes(const std::filesystem::path& path) {
  std::array<char, 9> bytes{};
  std::ifstream(path, std::ios::binary).read(bytes.data(), bytes.size());
  return bytes;
}

}  // namespace

bool TorchArchive::is_one(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const std::array<char, 9> bytes = first_bytes(path);
  const std::string_view begin(bytes.data(), bytes.size());
  // A safetensors file whose header has 0x04034b50 bytes begins as a zip archive, and goes on as
  // none.
  return (begin.starts_with(kZipMagic) && begin[8] != '{') || begin.starts_with(kPickleMagic);
}

TorchArchive::TorchArchive(std::filesystem::path path) : path_(std::move(path)), mapping_(path_) {
  const Place place{path_.string()};
  if (mapping_.text().starts_with(kPickleMagic)) {
    place.refuse("the file is a plain pickle, as torch.save wrote before PyTorch 1.6",
                 "read it with torch.load and save it again");
  }
  Records records(mapping_.bytes(), place);
  if (records.has("byteorder")) {
    const auto order = records.bytes("byteorder");
    const std::string_view text(reinterpret_cast<const char*>(order.data()), order.size());
    if (text != "little") {
      place.refuse(fmt::format("the archive's byte order is {}", quoted_name(text)),
                   "save it on a machine of little-endian numbers");
    }
  }
  const auto bytes = records.bytes("data.pkl");
  if (std::ssize(bytes) > kMaxPickleBytes) {
    place.refuse(
        fmt::format("a pickle of {} bytes; at most {} are read", bytes.size(), kMaxPickleBytes),
        "save model.state_dict() alone");
  }
  const Pickle pickle = parse_pickle(bytes, path_.string());
  const PickleValue* dict = pickle.root;
  const bool is_module = dict->kind == Kind::kObject && !dict->items.empty();
  if (is_module) dict = dict->items[0];
  if (dict->kind != Kind::kDict) {
    place.refuse("the file holds neither a state_dict nor a module", "save model.state_dict()");
  }
  if (!is_module && !holds_tensors(*dict)) {
    if (const auto key = nested_state_dict(*dict, dict)) {
      notes_.push_back(fmt::format("{}: the weights are its entry '{}'", path_.string(), *key));
    } else {
      place.refuse(
          "the file's dict holds no tensors, and nor does an entry 'state_dict', "
          "'model_state_dict' or 'model' of it",
          "save model.state_dict()");
    }
  }
  TensorReader reader(records, place);
  TensorWalk walk(reader, place);
  walk.walk(*dict, "", is_module, 0);
  tensors_ = walk.take();
}

}  // namespace fsdp
