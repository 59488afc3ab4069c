// The records of a zip archive, where they lie in the file. Only what torch.save writes of tensors
// is read: one disk, records that are neither compressed nor encrypted. (A module's code, which
// nothing reads, is compressed.)
//
// Not LibTorch's reader (miniz): it takes the first of two records of one name, compares names
// without case, and knows nothing of the flags. This one is tested, and fuzzed, without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

struct ZipRecord {
  std::span<const std::byte> bytes;
  uint32_t check_sum = 0;
  std::string unread;  // why it cannot be read, "is compressed"; then it has no bytes here
};

struct ZipDirectory {
  std::string folder;  // of the first record: "archive", in which torch.save puts all
  std::map<std::string, ZipRecord, std::less<>> records;  // by whole name

  // In the folder; null if it is not there.
  const ZipRecord* find(std::string_view name) const;
};

// Memory in proportion to the directory's bytes; records are not touched.
// Errors: IoError kCorruptData: by name for two records of one name, and for what lies outside the
//   file or differs between directory and record.
ZipDirectory parse_zip(std::span<const std::byte> bytes, const std::string& file);

// Errors: IoError kCorruptData with the name and the reason if the record cannot be read.
void require_readable(const ZipRecord& record, std::string_view name, const std::string& file);

// Reads the record from end to end; `read` is given each piece of at most 8 MiB that was read.
// Errors: as require_readable; IoError kCorruptData with the name if the bytes have another check
//   sum.
void check_record(const ZipRecord& record, std::string_view name, const std::string& file,
                  const std::function<void(std::span<const std::byte>)>& read = {});

}  // namespace fsdp
