#include "io/pickle.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_kind.h"
#include "io/pickle_names.h"
#include "io/pickle_opcode.h"
#include "io/pickle_tensors.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;
using Opcode = PickleOpcode;

// A stack machine that never calls a function that the file names. reduce() builds only the
// containers and tensors that it knows.
class PickleParser {
 public:
  PickleParser(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  Pickle parse() {
    if (opcode() != Opcode::kProto) broken("it does not begin as a pickle");
    if (const int protocol = number<uint8_t>(); protocol != 2) {
      refuse(fmt::format("the pickle has protocol {}, expected 2", protocol),
             "save it without pickle_protocol: torch.save then writes protocol 2");
    }
    while (step()) {
    }
    pickle_.root = pop();
    if (!stack_.empty()) broken("it has values left at its end");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(std::string what, std::string hint) const {
    throw IoError(ExitCode::kCorruptData,
                  {.what = std::move(what), .where = file_, .hint = std::move(hint)});
  }
  [[noreturn]] void broken(std::string_view why, std::string hint = {}) const {
    if (hint.empty()) hint = kFetchFileAgain;
    refuse(fmt::format("byte {} of the pickle: {}", at_, why), std::move(hint));
  }

  std::span<const std::byte> take(size_t count) {
    // The count is compared with the remaining bytes, because `at_ + count` could overflow.
    if (count > bytes_.size() - at_) broken("it ends too early");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  // Reads a little-endian number by memcpy, because all supported hosts are little-endian.
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  Opcode opcode() { return static_cast<Opcode>(number<uint8_t>()); }
  std::string text(size_t size) {
    const auto bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                                bytes_.size() - at_);
    const size_t end = rest.find('\n');
    if (end == rest.npos) broken("a name has no end");
    std::string found = text(end);
    ++at_;
    return found;
  }

  PickleValue* push(PickleValue value) {
    // The values are in a deque, so pointers to earlier values stay valid.
    PickleValue* made = &pickle_.values.emplace_back(std::move(value));
    stack_.push_back(made);
    return made;
  }
  void push_integer(int64_t value) { push({.kind = Kind::kInteger, .integer = value}); }
  PickleValue* pop() {
    // Values below the last mark stay: they belong to a container that is not complete yet.
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) broken("a value is missing");
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) broken("a mark is missing");
    std::vector<PickleValue*> values(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                                     stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  // Returns the container to which values are added. The container stays on the stack.
  PickleValue* top(Kind kind) {
    PickleValue* value = pop();
    stack_.push_back(value);
    if (value->kind != kind) broken("values are added to a value that is not a container");
    return value;
  }

  // Returns true if the top is a skipped object. Values put into it are skipped, too.
  bool top_is_unread() {
    PickleValue* value = pop();
    stack_.push_back(value);
    return value->kind == Kind::kUnread || value->kind == Kind::kUnreadTensor;
  }

  void push_sequence(const std::vector<PickleValue*>& values) {
    push({.kind = Kind::kSequence, .items = {values.begin(), values.end()}});
  }
  void push_tuple(int size) {
    std::vector<PickleValue*> values(size);
    for (int i = size; i-- > 0;) values[i] = pop();
    push_sequence(values);
  }
  void put(size_t key) {
    PickleValue* value = pop();
    stack_.push_back(value);
    memo_[key] = value;
  }
  void get(size_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) broken("a value is read that was never stored");
    stack_.push_back(found->second);
  }
  void set_items(const std::vector<PickleValue*>& values) {
    if (values.size() % 2 != 0) broken("a key has no value");
    if (top_is_unread()) return;
    PickleValue* dict = top(Kind::kDict);
    for (size_t i = 0; i < values.size(); i += 2) {
      dict->items.push_back(values[i]);
      dict->items.push_back(values[i + 1]);
    }
  }
  void append(const std::vector<PickleValue*>& values) {
    if (top_is_unread()) return;
    PickleValue* list = top(Kind::kSequence);
    list->items.insert(list->items.end(), values.begin(), values.end());
  }

  void push_global() {
    const std::string module = line();
    std::string name = fmt::format("{}.{}", module, line());
    constexpr size_t kMaxNameBytes = 256;  // each object keeps a copy of its class name
    if (name.size() > kMaxNameBytes) broken("a class name is too long");
    if (runs_code(name)) {
      refuse(fmt::format("the file names {}, which runs code and does not belong in a weight file",
                         quoted_name(name)),
             "do not open this file with torch.load; fetch the weights from another source; fsdp "
             "did not run the code");
    }
    push({.kind = Kind::kGlobal, .text = std::move(name)});
  }

  void push_storage() {
    const PickleValue& id = *pop();
    RebuiltTensor storage = rebuilt("a storage", [&] { return rebuild_storage(id); });
    if (storage.tensor) {
      const PickledTensor& said = *storage.tensor;
      // A file in which storages of one record differ in type or size is damaged or hostile.
      const auto [at, is_new] =
          storages_.emplace(said.record, std::pair(said.dtype, said.record_bytes));
      if (!is_new && at->second != std::pair(said.dtype, said.record_bytes)) {
        broken("a storage has two types or sizes");
      }
    }
    push_tensor(Kind::kStorage, std::move(storage));
  }
  template <class Rebuild>
  RebuiltTensor rebuilt(const std::string& what, const Rebuild& rebuild) {
    try {
      return rebuild();
    } catch (const WrongArguments& wrong) {
      broken(fmt::format("{} {}", what, wrong.why), wrong.hint);
    }
  }
  void push_tensor(Kind kind, RebuiltTensor made) {
    // The limit exceeds kMaxEntries, because storages and tensors other than weights count too.
    constexpr int64_t kMaxTensors = 4 * kMaxEntries;
    if (++tensors_ > kMaxTensors) {
      refuse(fmt::format("the file has more than {} tensors and storages", kMaxTensors),
             "save only model.state_dict()");
    }
    if (!made.tensor) kind = Kind::kUnreadTensor;
    push({.kind = kind, .text = std::move(made.unread), .tensor = std::move(made.tensor)});
  }

  void reduce() {
    const PickleValue& arguments = *pop();
    const PickleValue& called = *pop();
    if (arguments.kind != Kind::kSequence) broken("the called value is not a function");
    if (called.kind == Kind::kUnread) return push_unread(called.text);
    if (called.kind != Kind::kGlobal) broken("the called value is not a function");
    const auto function = pickle_function(called.text);
    // A tensor from an unknown function is refused later, and only if it is a weight.
    if (!function && makes_tensor(called.text)) {
      return push_tensor(Kind::kUnreadTensor,
                         {.unread = fmt::format("is made by {}", quoted_name(called.text))});
    }
    if (!function) return push_unread(called.text);
    switch (*function) {
      case PickleFunction::kDict:
        if (!arguments.items.empty()) broken("OrderedDict has arguments");
        push({.kind = Kind::kDict});
        break;
      case PickleFunction::kFirstArgument:
        if (arguments.items.empty()) broken("a function has no arguments");
        // Values are const for code that reads the parsed pickle. While the pickle is parsed, later
        // instructions may still change them.
        stack_.push_back(const_cast<PickleValue*>(arguments.items[0]));
        break;
      default:
        push_tensor(Kind::kTensor, rebuilt(quoted_name(called.text),
                                           [&] { return rebuild_tensor(*function, arguments); }));
    }
  }
  void push_unread(const std::string& name) { push({.kind = Kind::kUnread, .text = name}); }

  void new_object() {
    pop();  // the arguments, which TorchScript leaves empty
    const PickleValue& type = *pop();
    if (type.kind != Kind::kGlobal) broken("an object has no class");
    if (!is_script_class(type.text)) return push_unread(type.text);
    push({.kind = Kind::kObject, .text = type.text});
  }

  // Sets an object's attributes. The attributes of a state_dict (its versions) do not affect
  // weights.
  void build() {
    const PickleValue& state = *pop();
    PickleValue* built = pop();
    stack_.push_back(built);
    if (built->kind == Kind::kDict || built->kind == Kind::kUnread) return;
    if (built->kind != Kind::kObject) broken("attributes are set on a value that has none");
    if (state.kind != Kind::kDict) {
      refuse(
          fmt::format("an object of class {} has its own state format", quoted_name(built->text)),
          "save model.state_dict() instead");
    }
    built->items = {&state};
  }

  void push_long(size_t size) {
    const auto bytes = take(size);
    if (bytes.size() > sizeof(int64_t)) return void(push({}));
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof value; ++i) {
      // The number is little-endian two's complement. Its sign is extended to 64 bits.
      const bool is_negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{};
      const auto byte = i < bytes.size() ? static_cast<uint64_t>(bytes[i]) : is_negative ? 0xff : 0;
      value |= byte << (8 * i);
    }
    push_integer(static_cast<int64_t>(value));
  }

  // Executes one instruction. Returns false if it was the last one.
  bool step() {
    const size_t begin = at_;
    switch (opcode()) {
      case Opcode::kStop:
        return false;
      case Opcode::kPop:
        pop();
        break;
      case Opcode::kPopMark:
        pop_to_mark();
        break;
      case Opcode::kMark:
        marks_.push_back(stack_.size());
        break;
      case Opcode::kNone:
        push({});
        break;
      case Opcode::kBinFloat:
        take(sizeof(double));
        push({});
        break;
      case Opcode::kNewTrue:
      case Opcode::kNewFalse:
        push_integer(static_cast<Opcode>(bytes_[begin]) == Opcode::kNewTrue ? 1 : 0);
        break;
      case Opcode::kBinInt:
        push_integer(number<int32_t>());
        break;
      case Opcode::kBinInt1:
        push_integer(number<uint8_t>());
        break;
      case Opcode::kBinInt2:
        push_integer(number<uint16_t>());
        break;
      case Opcode::kLong1:
        push_long(number<uint8_t>());
        break;
      case Opcode::kLong4:
        push_long(number<uint32_t>());
        break;
      case Opcode::kBinUnicode:
        push({.kind = Kind::kText, .text = text(number<uint32_t>())});
        break;
      case Opcode::kEmptyList:
      case Opcode::kEmptyTuple:
        push({.kind = Kind::kSequence});
        break;
      case Opcode::kEmptyDict:
        push({.kind = Kind::kDict});
        break;
      case Opcode::kTuple:
        push_sequence(pop_to_mark());
        break;
      case Opcode::kTuple1:
        push_tuple(1);
        break;
      case Opcode::kTuple2:
        push_tuple(2);
        break;
      case Opcode::kTuple3:
        push_tuple(3);
        break;
      case Opcode::kAppend:
        append({pop()});
        break;
      case Opcode::kAppends:
        append(pop_to_mark());
        break;
      case Opcode::kSetItem: {
        PickleValue* value = pop();
        PickleValue* key = pop();
        set_items({key, value});
        break;
      }
      case Opcode::kSetItems:
        set_items(pop_to_mark());
        break;
      case Opcode::kBinPut:
        put(number<uint8_t>());
        break;
      case Opcode::kLongBinPut:
        put(number<uint32_t>());
        break;
      case Opcode::kBinGet:
        get(number<uint8_t>());
        break;
      case Opcode::kLongBinGet:
        get(number<uint32_t>());
        break;
      case Opcode::kGlobal:
        push_global();
        break;
      case Opcode::kBinPersId:
        push_storage();
        break;
      case Opcode::kReduce:
        reduce();
        break;
      case Opcode::kNewObj:
        new_object();
        break;
      case Opcode::kBuild:
        build();
        break;
      default:
        --at_;
        broken(fmt::format("torch.save does not write the instruction {:#04x}",
                           static_cast<int>(bytes_[at_])));
    }
    return true;
  }

  const std::span<const std::byte> bytes_;
  const std::string& file_;
  size_t at_ = 0;
  int64_t tensors_ = 0;
  std::map<std::string, std::pair<StoredDType, int64_t>> storages_;  // record -> type and bytes
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::map<size_t, PickleValue*> memo_;
};

}  // namespace

Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& file) {
  return PickleParser(bytes, file).parse();
}

}  // namespace fsdp
