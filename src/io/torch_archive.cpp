#include "io/torch_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_kind.h"
#include "io/pickle.h"
#include "io/safetensors_header.h"
#include "io/torch_entries.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;

constexpr int64_t kMaxPickleBytes = 16 << 20;

// The file of the archive, for error messages.
struct Place {
  const std::string& where;
  [[noreturn]] void refuse(std::string what, std::string hint) const {
    throw IoError(ExitCode::kCorruptData,
                  {.what = std::move(what), .where = where, .hint = std::move(hint)});
  }
};

// The records of a torch.save archive, read by name.
class Records {
 public:
  Records(const ZipDirectory& directory, bool has_check_sums, const Place& place)
      : directory_(directory), has_check_sums_(has_check_sums), place_(place) {}

  const ZipRecord& at(const std::string& name) const {
    const ZipRecord* record = directory_.find(name);
    if (record == nullptr) {
      place_.refuse(fmt::format("the archive has no record {}", quoted_name(name)),
                    kFetchFileAgain);
    }
    require_readable(*record, name, place_.where);
    return *record;
  }
  // Verifies the check sum of a small record and returns the record's bytes. Returns nothing if
  // there is no such record.
  std::optional<std::string_view> text(const std::string& name) const {
    const ZipRecord* record = directory_.find(name);
    if (record == nullptr) return std::nullopt;
    require_readable(*record, name, place_.where);
    if (has_check_sums_) check_record(*record, name, place_.where);
    return std::string_view(reinterpret_cast<const char*>(record->bytes.data()),
                            record->bytes.size());
  }

 private:
  const ZipDirectory& directory_;
  const bool has_check_sums_;
  const Place& place_;
};

// A reader that checks that a pickled tensor fits into its record, and then returns the tensor with
// its bytes in the mapped file.
class TensorReader {
 public:
  TensorReader(const Records& records, const Place& place) : records_(records), place_(place) {}

  MappedTensor read(const std::string& name, const PickledTensor& tensor) const {
    const auto refuse_tensor = [&](std::string_view what) {
      place_.refuse(fmt::format("tensor {} {}", quoted_name(name), what), kFetchFileAgain);
    };
    const int64_t item_bytes = bits_of(tensor.dtype) / 8;
    const auto count = count_elements(tensor.dtype, tensor.shape);
    if (!count || tensor.strides.size() != tensor.shape.size() || tensor.offset < 0) {
      refuse_tensor("has an invalid shape, strides or offset");
    }
    // An empty storage needs no record, so the archive may lack its record.
    const std::span<const std::byte> record = tensor.record_bytes > 0
                                                  ? records_.at("data/" + tensor.record).bytes
                                                  : std::span<const std::byte>();
    if (std::ssize(record) != tensor.record_bytes) {
      refuse_tensor(fmt::format("needs a storage of {} bytes, but its record has {}",
                                tensor.record_bytes, record.size()));
    }
    MappedTensor mapped{
        .name = name, .dtype = tensor.dtype, .shape = tensor.shape, .strides = tensor.strides};
    if (count->numel == 0) return mapped;
    const int64_t stored = tensor.record_bytes / item_bytes;
    int64_t last = tensor.offset;  // index of the last element in the record
    // In a dimension of n elements the last index is n - 1 strides further. An overflow counts as
    // outside the record.
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      int64_t reach = 0;
      if (tensor.strides[i] < 0 ||
          __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        last = stored;
        break;
      }
    }
    if (last >= stored) {
      refuse_tensor(fmt::format(
          "of shape {}, strides {} and offset {} exceeds its storage of {} elements",
          format_shape(tensor.shape), format_shape(tensor.strides), tensor.offset, stored));
    }
    // The bytes extend from the first element to the last. Strides may leave gaps, so there can be
    // more than numel elements.
    mapped.bytes = record.subspan(static_cast<size_t>(tensor.offset * item_bytes),
                                  static_cast<size_t>((last - tensor.offset + 1) * item_bytes));
    return mapped;
  }

 private:
  const Records& records_;
  const Place& place_;
};

void check_version(const Records& records, const Place& place) {
  constexpr int kOldest = 1, kNewest = 10;  // versions written by LibTorch up to 2.15
  // TorchScript archives store the version in .data/version.
  const auto text = records.text(records.text(".data/version") ? ".data/version" : "version");
  if (!text) place.refuse("the archive has no record 'version'", kFetchFileAgain);
  int version = 0;
  std::from_chars(text->data(), text->data() + text->size(), version);
  if (version < kOldest || version > kNewest) {
    place.refuse(fmt::format("the archive has version {}, expected {} to {}",
                             quoted_name(text->substr(0, text->find('\n'))), kOldest, kNewest),
                 "save it again with a PyTorch release that writes one of these versions");
  }
  const auto order = records.text("byteorder");
  if (order && *order != "little") {
    place.refuse(fmt::format("the archive's byte order is {}", quoted_name(*order)),
                 "save it on a little-endian machine");
  }
}

Pickle read_pickle(const Records& records, const Place& place) {
  const auto bytes = records.at("data.pkl").bytes;
  // The pickle of a state_dict holds only names and shapes, so a pickle beyond the limit is not
  // that of a state_dict.
  if (std::ssize(bytes) > kMaxPickleBytes) {
    place.refuse(
        fmt::format("the pickle has {} bytes, at most {} are read", bytes.size(), kMaxPickleBytes),
        "save only model.state_dict()");
  }
  // This call compares the check sum before the bytes are used.
  records.text("data.pkl");
  return parse_pickle(bytes, place.where);
}

// Returns true if the archive has check sums. torch.serialization.set_crc32_options(False) writes 0
// for all of them.
bool any_check_sum(const ZipDirectory& directory) {
  return std::ranges::any_of(directory.records,
                             [](const auto& item) { return item.second.check_sum != 0; });
}

}  // namespace

TorchLayout parse_torch_archive(std::span<const std::byte> bytes, const std::string& file) {
  const Place place{file};
  TorchLayout layout{.records = parse_zip(bytes, file)};
  layout.has_check_sums = any_check_sum(layout.records);
  if (!layout.has_check_sums) {
    layout.notes.push_back(fmt::format("{} has no check sums: damage to it is not detected", file));
  }
  const Records records(layout.records, layout.has_check_sums, place);
  if (layout.records.find("data.pkl") == nullptr) {
    place.refuse("the file is a zip archive without a record 'data.pkl'",
                 "unpack it, or pass another file: torch.save did not write it");
  }
  check_version(records, place);
  // The entries point into `pickle`, so `pickle` must exist until the entries are read.
  const Pickle pickle = read_pickle(records, place);
  const TorchEntries entries = find_entries(*pickle.root, file);
  const TensorReader reader(records, place);
  for (const TorchEntries::Entry& entry : entries.tensors) {
    layout.tensors.push_back(reader.read(entry.name, *entry.tensor));
  }
  layout.notes.insert(layout.notes.end(), entries.notes.begin(), entries.notes.end());
  return layout;
}

bool TorchArchive::is_one(const std::filesystem::path& path) {
  const FileKind kind = kind_of_file(path);
  return kind == FileKind::kZip || kind == FileKind::kPickle;
}

TorchArchive::TorchArchive(std::filesystem::path path) : path_(std::move(path)), mapping_(path_) {
  const std::string file = path_.string();
  // A plain pickle is reported as the old format. The parser below would report it as a broken
  // archive.
  if (file_kind(mapping_.text()) == FileKind::kPickle) {
    Place{file}.refuse("the file is a plain pickle, as torch.save wrote before PyTorch 1.6",
                       "read it with torch.load and save it again");
  }
  layout_ = parse_torch_archive(mapping_.bytes(), file);
}

// Checks whole records in the order of their names. The bytes of all records are divided into equal
// parts, and a record belongs to the part in which it begins.
void TorchArchive::check_sums(int part, int parts) const {
  if (!layout_.has_check_sums) return;
  uint64_t all = 0, before = 0;
  for (const auto& [name, record] : layout_.records.records) all += record.bytes.size();
  // The size of a part is rounded up, so that every record begins within a part.
  const uint64_t share = all / static_cast<uint64_t>(parts) + 1;
  for (const auto& [name, record] : layout_.records.records) {
    const uint64_t of = before / share;
    before += record.bytes.size();
    if (of != static_cast<uint64_t>(part) || !record.unread.empty()) continue;
    check_record(record, name, path_.string(), [&](auto piece) { mapping_.forget(piece); });
  }
}

}  // namespace fsdp
