#include "io/manifest_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/checked_shard.h"
#include "io/exact_number.h"
#include "io/json_text.h"
#include "io/manifest_rules.h"

namespace fsdp {
namespace {

// An object or an array of the text.
enum class Part : uint8_t {
  kOutside,
  kManifest,
  kConditions,
  kObjects,
  kObject,
  kValues,
  kValue,
  kTensors,
  kTensor,
  kOtherNames,
  kShape,
  kStrides,
  kFiles,
  kFile,
};

struct PartRow {
  Part part;
  Part parent;
  std::string_view what;
  Part element = Part::kOutside;  // part of each element, if this is an array of objects
  bool is_array = false;
};
constexpr std::array kParts{
    PartRow{Part::kOutside, Part::kOutside, "the text"},
    PartRow{Part::kManifest, Part::kOutside, "the manifest"},
    PartRow{Part::kConditions, Part::kManifest, "the conditions"},
    PartRow{Part::kObjects, Part::kManifest, "the objects", Part::kObject, true},
    PartRow{Part::kObject, Part::kObjects, "an object"},
    PartRow{Part::kValues, Part::kObject, "the values of an object"},
    PartRow{Part::kValue, Part::kValues, "a value of an object"},
    PartRow{Part::kTensors, Part::kManifest, "the tensors", Part::kTensor, true},
    PartRow{Part::kTensor, Part::kTensors, "a tensor"},
    PartRow{Part::kOtherNames, Part::kTensor, "the other names of a tensor", Part::kOutside, true},
    PartRow{Part::kShape, Part::kTensor, "the shape of a tensor", Part::kOutside, true},
    PartRow{Part::kStrides, Part::kTensor, "the strides of a tensor", Part::kOutside, true},
    PartRow{Part::kFiles, Part::kManifest, "the files", Part::kFile, true},
    PartRow{Part::kFile, Part::kFiles, "a file"},
};
constexpr const PartRow& part_row(Part part) { return kParts[static_cast<size_t>(part)]; }
static_assert(part_row(Part::kFile).part == Part::kFile &&
              part_row(Part::kShape).part == Part::kShape);

enum class Form : uint8_t { kText, kInteger, kReal, kHash, kDType, kBoolean, kVersion, kPart };
constexpr std::array<std::string_view, 8> kFormNames{"text",
                                                     "an integer as text",
                                                     "a hexadecimal number as text",
                                                     "a hash of 32 digits",
                                                     "a dtype",
                                                     "true or false",
                                                     "the number 1",
                                                     "an object or an array"};

struct Member {
  Part of;
  std::string_view key;
  Form form;
  Part opens = Part::kOutside;  // of Form::kPart
};
constexpr std::array kMembers{
    Member{Part::kManifest, "version", Form::kVersion},
    Member{Part::kManifest, "run", Form::kText},
    Member{Part::kManifest, "sequence", Form::kInteger},
    Member{Part::kManifest, "step", Form::kInteger},
    Member{Part::kManifest, "resumed_from", Form::kInteger},
    Member{Part::kManifest, "time", Form::kText},
    Member{Part::kManifest, "finite", Form::kBoolean},
    Member{Part::kManifest, "world_size", Form::kInteger},
    Member{Part::kManifest, "conditions", Form::kPart, Part::kConditions},
    Member{Part::kManifest, "objects", Form::kPart, Part::kObjects},
    Member{Part::kManifest, "tensors", Form::kPart, Part::kTensors},
    Member{Part::kManifest, "files", Form::kPart, Part::kFiles},
    Member{Part::kManifest, "hash", Form::kHash},
    Member{Part::kObject, "name", Form::kText},
    Member{Part::kObject, "kind", Form::kText},
    Member{Part::kObject, "values", Form::kPart, Part::kValues},
    Member{Part::kValue, "integer", Form::kInteger},
    Member{Part::kValue, "real", Form::kReal},
    Member{Part::kValue, "text", Form::kText},
    Member{Part::kTensor, "name", Form::kText},
    Member{Part::kTensor, "other_names", Form::kPart, Part::kOtherNames},
    Member{Part::kTensor, "dtype", Form::kDType},
    Member{Part::kTensor, "shape", Form::kPart, Part::kShape},
    Member{Part::kTensor, "strides", Form::kPart, Part::kStrides},
    Member{Part::kTensor, "granule", Form::kInteger},
    Member{Part::kFile, "name", Form::kText},
    Member{Part::kFile, "bytes", Form::kInteger},
    Member{Part::kFile, "sum", Form::kHash},
};
static_assert(kMembers.size() <= 32);  // each member has a bit in `seen_`

// A handler that reads the manifest. Each value is checked against the table of members. The limits
// are checked while values are read, so that a hostile text cannot make the result grow.
class ManifestEvents final : public JsonEvents {
 public:
  explicit ManifestEvents(CheckpointManifest& manifest) : manifest_(manifest) {}

  void on_null() override { unexpected("null"); }
  void on_negative(int64_t) override { unexpected("a negative number"); }
  void on_real(double) override { unexpected("a number"); }
  void on_boolean(bool value) override {
    if (!is_member(Form::kBoolean)) unexpected("a boolean");
    manifest_.finite = value;
  }
  void on_unsigned(uint64_t value) override {
    if (!is_member(Form::kVersion)) unexpected("a number");
    if (value != uint64_t{kManifestVersion}) {
      fail(fmt::format("the checkpoint has version {}, expected {}", value, kManifestVersion),
           "load it with the version of the library that wrote it");
    }
  }

  void on_string(std::string& value) override {
    switch (part_) {
      case Part::kConditions:
        manifest_.conditions.emplace(std::move(key_), std::move(value));
        break;
      case Part::kOtherNames:
        count_entry();
        manifest_.tensors.back().other_names.push_back(std::move(value));
        break;
      case Part::kShape:
        add_dimension(manifest_.tensors.back().shape, value);
        break;
      case Part::kStrides:
        add_dimension(manifest_.tensors.back().strides, value);
        break;
      default:
        put_text(value);
    }
  }

  void on_key(std::string& key) override {
    if (part_ == Part::kConditions || part_ == Part::kValues) {
      count_entry();
      if (part_ == Part::kValues) value_name_ = key;
    } else {
      const auto at = std::ranges::find_if(
          kMembers, [&](const Member& each) { return each.of == part_ && each.key == key; });
      if (at == kMembers.end()) {
        fail(fmt::format("{} has the unknown member {}", what(), quoted_name(key)));
      }
      member_ = &*at;
      seen_ |= 1U << (at - kMembers.begin());
    }
    key_ = std::move(key);
  }

  void start_object() override {
    const Part next = next_part();
    if (next == Part::kOutside || part_row(next).is_array) unexpected("an object");
    enter(next);
    if (next == Part::kObject) manifest_.objects.emplace_back();
    if (next == Part::kFile) manifest_.files.emplace_back();
    if (next == Part::kObject || next == Part::kFile) count_entry();
    if (next != Part::kTensor) return;
    if (std::ssize(manifest_.tensors) == kMaxManifestTensors) {
      fail(fmt::format("the manifest has more than {} tensors", kMaxManifestTensors));
    }
    manifest_.tensors.emplace_back();
  }

  void end_object() override {
    if (part_ == Part::kValue) {
      if (!value_) fail(fmt::format("{} has no member", what()));
      manifest_.objects.back().values.emplace(std::move(value_name_), *std::exchange(value_, {}));
    }
    for (size_t i = 0; i < kMembers.size() && part_ != Part::kValue; ++i) {
      if (kMembers[i].of != part_ || (seen_ >> i & 1) != 0) continue;
      fail(fmt::format("{} lacks the member '{}'", what(), kMembers[i].key));
    }
    leave();
  }

  void start_array() override {
    const Part next = next_part();
    if (next == Part::kOutside || !part_row(next).is_array) unexpected("an array");
    enter(next);
  }
  void end_array() override { leave(); }

 private:
  std::string_view what() const { return part_row(part_).what; }

  // Returns the part that an object or an array opens here, or kOutside if none may begin.
  Part next_part() const {
    if (part_ == Part::kOutside) return Part::kManifest;
    if (part_ == Part::kValues) return Part::kValue;
    if (part_row(part_).is_array) return part_row(part_).element;
    return member_ != nullptr ? member_->opens : Part::kOutside;
  }

  // Begins a part: clears the bits of its members in `seen_`. The bits of the members of outer
  // parts stay, because parts that are open at the same time are of different kinds.
  void enter(Part part) {
    for (size_t i = 0; i < kMembers.size(); ++i) {
      if (kMembers[i].of == part) seen_ &= ~(1U << i);
    }
    part_ = part;
    member_ = nullptr;
  }
  void leave() {
    part_ = part_row(part_).parent;
    member_ = nullptr;
  }

  bool is_member(Form form) const { return member_ != nullptr && member_->form == form; }

  [[noreturn]] void unexpected(std::string_view found) const {
    if (member_ != nullptr) {
      fail(fmt::format("'{}' of {} is {}, expected {}", member_->key, what(), found,
                       kFormNames.at(static_cast<size_t>(member_->form))));
    }
    if (part_ == Part::kOutside) fail(fmt::format("the text is {}, not an object", found));
    fail(fmt::format("{} in {}", found, what()));
  }
  [[noreturn]] void wrong_text(const std::string& value) const { unexpected(quoted_name(value)); }

  void count_entry() {
    if (++entries_ <= kMaxManifestEntries) return;
    fail(fmt::format("the manifest has more than {} values, conditions, files and other names",
                     kMaxManifestEntries));
  }

  void add_dimension(std::vector<int64_t>& list, const std::string& value) {
    const auto number = integer_from_text(value);
    if (!number) fail(fmt::format("{} has {}, expected an integer", what(), quoted_name(value)));
    // A tensor has as many strides as sizes, so each of them counts as half a dimension.
    if (++dimensions_ > 2 * kMaxManifestDimensions) {
      fail(fmt::format("the manifest has more than {} dimensions", kMaxManifestDimensions));
    }
    list.push_back(*number);
  }

  // Checks that the text has the form of the member, and stores the text.
  void put_text(std::string& value) {
    if (member_ == nullptr) unexpected("text");
    switch (member_->form) {
      case Form::kText:
        return put(value);
      case Form::kInteger:
        if (const auto number = integer_from_text(value)) return put(*number);
        wrong_text(value);
      case Form::kReal:
        if (const auto number = double_from_text(value)) return put_value(*number);
        wrong_text(value);
      case Form::kHash:
        if (const auto hash = hash_from_text(value)) return put(*hash);
        wrong_text(value);
      case Form::kDType:
        if (const auto dtype = stored_dtype_from_name(value)) return put(*dtype);
        wrong_text(value);
      default:
        unexpected("text");
    }
  }

  bool is(std::string_view key) const { return member_->key == key; }

  void put(std::string& value) {
    if (part_ == Part::kValue) return put_value(std::move(value));
    std::string* to = nullptr;
    if (part_ == Part::kManifest) to = is("run") ? &manifest_.run : &manifest_.time;
    if (part_ == Part::kTensor) to = &manifest_.tensors.back().name;
    if (part_ == Part::kFile) to = &manifest_.files.back().name;
    if (part_ == Part::kObject) {
      ManifestObject& object = manifest_.objects.back();
      to = is("name") ? &object.name : &object.kind;
    }
    *to = std::move(value);
  }
  void put(int64_t value) {
    if (part_ == Part::kValue) return put_value(value);
    if (part_ == Part::kTensor) {
      manifest_.tensors.back().granule = value;
    } else if (part_ == Part::kFile) {
      manifest_.files.back().bytes = value;
    } else {
      (is("sequence")       ? manifest_.sequence
       : is("step")         ? manifest_.step
       : is("resumed_from") ? manifest_.resumed_from
                            : manifest_.world_size) = value;
    }
  }
  void put(const Hash128& hash) {
    // The only other hash is the manifest's own, which was compared before the text was parsed.
    if (part_ == Part::kFile) manifest_.files.back().sum = hash;
  }
  void put(StoredDType dtype) { manifest_.tensors.back().dtype = dtype; }
  void put_value(ManifestValue value) {
    if (value_) fail(fmt::format("{} has more than one member", what()));
    value_ = std::move(value);
  }

  CheckpointManifest& manifest_;
  Part part_ = Part::kOutside;
  const Member* member_ = nullptr;  // whose value follows
  uint32_t seen_ = 0;               // one bit per index into kMembers
  std::string key_;
  std::string value_name_;
  std::optional<ManifestValue> value_;
  int64_t entries_ = 0;
  int64_t dimensions_ = 0;
};

// Returns the hash of all bytes before the last member.
Hash128 own_hash(std::string_view body) {
  return hash_of(std::as_bytes(std::span(body.data(), body.size())));
}

void check_own_hash(std::string_view text, const std::filesystem::path& path) {
  constexpr size_t kHashDigits = 32;
  constexpr size_t kEnd = kManifestHashBegin.size() + kHashDigits + kManifestHashEnd.size();
  const std::string_view end = text.substr(text.size() - std::min(text.size(), kEnd));
  const auto stored =
      end.size() == kEnd && end.starts_with(kManifestHashBegin) && end.ends_with(kManifestHashEnd)
          ? hash_from_text(end.substr(kManifestHashBegin.size(), kHashDigits))
          : std::nullopt;
  if (!stored) refuse_damaged(path, "it does not end with its hash");
  const Hash128 found = own_hash(text.substr(0, text.size() - kEnd));
  if (found == *stored) return;
  refuse_damaged(
      path, "its text does not have the hash at its end",
      fmt::format("the hash is {}, expected {}", found.to_string(), stored->to_string()));
}

// Returns an upper bound of the number of tensors in the text, so that the list does not move while
// it grows.
size_t most_tensors(std::string_view text) {
  constexpr std::string_view kOnce = "\"granule\"";
  int64_t count = 0;
  for (size_t at = text.find(kOnce); at != text.npos && count < kMaxManifestTensors; ++count) {
    at = text.find(kOnce, at + kOnce.size());
  }
  return static_cast<size_t>(count);
}

}  // namespace

std::string manifest_end(std::string_view body) {
  return fmt::format("{}{}{}", kManifestHashBegin, own_hash(body).to_string(), kManifestHashEnd);
}

CheckpointManifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  check_own_hash(text, path);
  CheckpointManifest manifest;
  manifest.tensors.reserve(most_tensors(text));
  ManifestEvents events(manifest);
  constexpr JsonLimits kManifestLimits{.depth = 8,
                                       .string_bytes = kMaxManifestTextBytes,
                                       .keys = kMaxManifestEntries + std::ssize(kMembers)};
  parse_json({.text = text, .file = path.string()}, events, kManifestLimits);
  const std::string fault = fault_of(manifest);
  if (!fault.empty()) refuse_damaged(path, fault);
  return manifest;
}

}  // namespace fsdp
