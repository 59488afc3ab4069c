#include "io/zip_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/crc32.h"
#include "io/file_kind.h"

namespace fsdp {
namespace {

using Bytes = std::span<const std::byte>;

// The signature of each structure, and the size of its fixed part. The size includes the signature.
constexpr uint32_t kRecord = 0x04034b50, kEntry = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kEnd64Place = 0x07064b50;
constexpr size_t kRecordBytes = 30, kEntryBytes = 46;
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kEnd64PlaceBytes = 20;

constexpr uint16_t kIsEncrypted = 1 << 0 | 1 << 6 | 1 << 13;
// The flags of a record that the parser accepts. They stand for deflate settings, for sizes that
// follow the data, and for names in UTF-8. None of these flags changes the bytes of a record.
constexpr uint16_t kKnownFlags = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 11;
constexpr uint16_t kExtra64 = 1;
constexpr uint32_t kIs64 = std::numeric_limits<uint32_t>::max();
constexpr size_t kMaxRecords = 1 << 20;

class ZipParser {
 public:
  ZipParser(Bytes bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  ZipDirectory parse() {
    const Bytes entries = find_entries();
    size_t at = 0;
    while (at < entries.size()) at += read_entry(entries.subspan(at));
    if (directory_.records.empty()) broken("it has no records");
    return std::move(directory_);
  }

 private:
  struct Entry {
    std::string name;
    uint16_t flags = 0, method = 0;
    uint32_t check_sum = 0;
    uint64_t stored_bytes = 0, bytes = 0, offset = 0;
  };

  [[noreturn]] void refuse(std::string what, std::string hint, std::string cause = {}) const {
    throw IoError(ExitCode::kCorruptData, {.what = std::move(what),
                                           .where = file_,
                                           .cause = std::move(cause),
                                           .hint = std::move(hint)});
  }
  [[noreturn]] void broken(std::string_view why) const {
    refuse("the file begins as a zip archive but is not a valid one", kFetchFileAgain,
           std::string(why));
  }
  [[noreturn]] void refuse_record(const Entry& entry, std::string_view what,
                                  std::string hint = kFetchFileAgain) const {
    refuse(fmt::format("record {} {}", quoted_name(entry.name), what), std::move(hint));
  }

  // Reads a little-endian number by memcpy, because all supported hosts are little-endian.
  template <class Number>
  Number number(Bytes from, size_t at) const {
    if (at > from.size() || sizeof(Number) > from.size() - at) broken("it is truncated");
    Number value;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
  }
  Bytes part(Bytes from, uint64_t at, uint64_t size, std::string_view what) const {
    if (at > from.size() || size > from.size() - at) broken(what);
    return from.subspan(static_cast<size_t>(at), static_cast<size_t>(size));
  }

  // Returns the offset of the end record. Only its own comment may follow it, so the search begins
  // at the end of the file and takes the last signature of this kind.
  size_t find_end() const {
    constexpr size_t kMaxComment = std::numeric_limits<uint16_t>::max();
    if (bytes_.size() < kEndBytes) broken("it is truncated");
    const size_t last = bytes_.size() - kEndBytes;
    for (size_t back = 0; back <= std::min(last, kMaxComment); ++back) {
      if (number<uint32_t>(bytes_, last - back) != kEnd) continue;
      // Nothing may follow the end record's comment, because another reader could find another end
      // record there.
      if (number<uint16_t>(bytes_, last - back + 20) != back) broken("bytes follow its end");
      return last - back;
    }
    broken("its directory, which is written last, is missing");
  }

  Bytes find_entries() const {
    const size_t end = find_end();
    uint64_t count = number<uint16_t>(bytes_, end + 10);
    uint64_t size = number<uint32_t>(bytes_, end + 12);
    uint64_t offset = number<uint32_t>(bytes_, end + 16);
    bool one_disk = number<uint16_t>(bytes_, end + 4) == number<uint16_t>(bytes_, end + 6);
    uint64_t count_here = number<uint16_t>(bytes_, end + 8);
    // If a zip64 locator precedes the end record, the sizes are in the zip64 end record, which has
    // wider fields.
    const bool has_64 =
        end >= kEnd64PlaceBytes && number<uint32_t>(bytes_, end - kEnd64PlaceBytes) == kEnd64Place;
    if (has_64) {
      const Bytes wide = part(bytes_, number<uint64_t>(bytes_, end - kEnd64PlaceBytes + 8),
                              kEnd64Bytes, "its directory is outside the file");
      if (number<uint32_t>(wide, 0) != kEnd64) broken("its directory is not at the stated offset");
      one_disk = number<uint32_t>(wide, 16) == number<uint32_t>(wide, 20);
      count_here = number<uint64_t>(wide, 24);
      count = number<uint64_t>(wide, 32);
      size = number<uint64_t>(wide, 40);
      offset = number<uint64_t>(wide, 48);
    }
    if (!one_disk || count != count_here) broken("it is one part of several");
    if (count > kMaxRecords) {
      refuse(fmt::format("the archive has {} records, at most {} are read", count, kMaxRecords),
             "save only model.state_dict()");
    }
    // Each entry has at least the size of its fixed part. So this check limits the memory for
    // `count` entries by the directory's bytes.
    if (size < count * kEntryBytes) broken("its directory is truncated");
    return part(bytes_, offset, size, "its directory is outside the file");
  }

  // Adds one entry. Returns the size of the entry in the directory.
  size_t read_entry(Bytes from) {
    if (number<uint32_t>(from, 0) != kEntry) broken("its directory has an invalid entry");
    const size_t name = number<uint16_t>(from, 28), extra = number<uint16_t>(from, 30);
    const size_t comment = number<uint16_t>(from, 32);
    const Bytes rest =
        part(from, kEntryBytes, name + extra + comment, "its directory is truncated");
    Entry entry{.name = {reinterpret_cast<const char*>(rest.data()), name},
                .flags = number<uint16_t>(from, 8),
                .method = number<uint16_t>(from, 10),
                .check_sum = number<uint32_t>(from, 16),
                .stored_bytes = number<uint32_t>(from, 20),
                .bytes = number<uint32_t>(from, 24),
                .offset = number<uint32_t>(from, 42)};
    widen(entry, rest.subspan(name, extra));
    add(std::move(entry));
    return kEntryBytes + rest.size();
  }

  // Reads the extra field of an entry. The field holds a 64-bit number for each of the three
  // numbers below that does not fit into 32 bits, in this order.
  void widen(Entry& entry, Bytes extra) const {
    size_t at = 0;
    while (at < extra.size()) {
      const auto id = number<uint16_t>(extra, at);
      const Bytes field =
          part(extra, at + 4, number<uint16_t>(extra, at + 2), "its directory is truncated");
      at += 4 + field.size();
      if (id != kExtra64) continue;
      size_t next = 0;
      for (uint64_t* each : {&entry.bytes, &entry.stored_bytes, &entry.offset}) {
        // If all 32 bits of a number are set, the extra field holds the number.
        if (*each != kIs64) continue;
        *each = number<uint64_t>(field, next);
        next += sizeof(uint64_t);
      }
      return;
    }
  }

  // Returns the reason why a record cannot be read, or an empty text. Unknown flags are a reason,
  // because they might change the bytes.
  static std::string why_unread(const Entry& entry) {
    if ((entry.flags & kIsEncrypted) != 0) return "is encrypted";
    if (entry.method != 0) return "is compressed";
    if ((entry.flags & ~kKnownFlags) == 0) return {};
    return fmt::format("has flags {:#06x}, which are not supported", entry.flags);
  }

  void add(Entry entry) {
    ZipRecord record{.check_sum = entry.check_sum, .unread = why_unread(entry)};
    if (entry.method == 0 && entry.stored_bytes != entry.bytes)
      refuse_record(entry, "has two sizes");
    // torch.save puts all records into one folder. The name of the folder differs between files.
    if (directory_.folder.empty()) {
      directory_.folder = entry.name.substr(0, entry.name.find('/'));
      if (directory_.folder.size() == entry.name.size()) {
        refuse_record(entry, "is in no folder",
                      "unpack it, or pass another file: torch.save did not write it");
      }
    }
    // LibTorch ignores case when it compares names. For two names that differ only in case,
    // LibTorch could read the same record twice. So such names are refused as one name.
    std::string without_case = entry.name;
    for (char& c : without_case) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    if (!names_.insert(std::move(without_case)).second) refuse_record(entry, "appears twice");
    const Bytes bytes = bytes_of(entry);
    if (record.unread.empty()) record.bytes = bytes;
    directory_.records.emplace(std::move(entry.name), std::move(record));
  }

  // Returns the record's bytes. The bytes follow the record's own header, which must agree with the
  // directory.
  Bytes bytes_of(const Entry& entry) const {
    if (entry.offset > bytes_.size() || kRecordBytes > bytes_.size() - entry.offset) {
      refuse_record(entry, "ends beyond the file");
    }
    const Bytes from = bytes_.subspan(static_cast<size_t>(entry.offset));
    const size_t name = number<uint16_t>(from, 26), extra = number<uint16_t>(from, 28);
    const size_t header = kRecordBytes + name + extra;
    if (header > from.size() || entry.stored_bytes > from.size() - header) {
      refuse_record(entry, "ends beyond the file");
    }
    const std::string_view said(reinterpret_cast<const char*>(from.data()) + kRecordBytes, name);
    if (number<uint32_t>(from, 0) != kRecord || said != entry.name ||
        // Readers may use either header. If they differ, two readers could read different bytes.
        number<uint16_t>(from, 6) != entry.flags || number<uint16_t>(from, 8) != entry.method) {
      refuse_record(entry, "differs from its directory entry");
    }
    return from.subspan(header, static_cast<size_t>(entry.stored_bytes));
  }

  const Bytes bytes_;
  const std::string& file_;
  ZipDirectory directory_;
  std::set<std::string> names_;
};

}  // namespace

const ZipRecord* ZipDirectory::find(std::string_view name) const {
  const auto at = records.find(fmt::format("{}/{}", folder, name));
  return at == records.end() ? nullptr : &at->second;
}

ZipDirectory parse_zip(std::span<const std::byte> bytes, const std::string& file) {
  return ZipParser(bytes, file).parse();
}

void require_readable(const ZipRecord& record, std::string_view name, const std::string& file) {
  if (record.unread.empty()) return;
  throw IoError(
      ExitCode::kCorruptData,
      {.what = fmt::format("record {} {}", quoted_name(name), record.unread),
       .where = file,
       .hint = "load the file in PyTorch and save it with torch.save, which writes plain records"});
}

void check_record(const ZipRecord& record, std::string_view name, const std::string& file,
                  const std::function<void(std::span<const std::byte>)>& read) {
  require_readable(record, name, file);
  constexpr size_t kPieceBytes = 8 << 20;
  uint32_t sum = 0;
  for (Bytes rest = record.bytes; !rest.empty();) {
    const Bytes piece = rest.first(std::min(rest.size(), kPieceBytes));
    sum = crc32(piece, sum);
    if (read) read(piece);
    rest = rest.subspan(piece.size());
  }
  if (sum == record.check_sum) return;
  throw IoError(ExitCode::kCorruptData,
                {.what = fmt::format("record {} is damaged: its check sum is {:08x}, the archive "
                                     "says {:08x}",
                                     quoted_name(name), sum, record.check_sum),
                 .where = file,
                 .hint = kFetchFileAgain});
}

}  // namespace fsdp
