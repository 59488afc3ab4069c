#include "io/pickle.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "fsdp/error.h"
#include "io/pickle_names.h"
#include "io/pickle_opcode.h"
#include "io/printable_name.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;
using Opcode = PickleOpcode;

class PickleParser {
 public:
  PickleParser(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  Pickle parse() {
    if (opcode() != Opcode::kProto) broken("it does not begin as one");
    if (const int protocol = number<uint8_t>(); protocol != 2) {
      refuse(fmt::format("the pickle is of protocol {}, and 2 is read", protocol),
             "torch.save writes 2 by itself: leave pickle_protocol out");
    }
    while (step()) {
    }
    pickle_.root = pop();
    if (!stack_.empty()) broken("values are left over");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(std::string what, std::string hint) const {
    throw IoError(ExitCode::kCorruptData,
                  {.what = std::move(what), .where = file_, .hint = std::move(hint)});
  }
  [[noreturn]] void broken(std::string_view why) const {
    refuse(fmt::format("byte {} of the pickle: {}", at_, why),
           "the file is broken: fetch it again");
  }

  std::span<const std::byte> take(size_t count) {
    if (count > bytes_.size() - at_) broken("it ends too early");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  // Little-endian, as the hosts that this runs on.
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
    if (end == rest.npos) broken("a name without an end");
    std::string found = text(end);
    ++at_;
    return found;
  }

  PickleValue* push(PickleValue value) {
    PickleValue* made = &pickle_.values.emplace_back(std::move(value));
    stack_.push_back(made);
    return made;
  }
  void push_integer(int64_t value) { push({.kind = Kind::kInteger, .integer = value}); }
  PickleValue* pop() {
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
  // The container that values go into, which stays on the stack.
  PickleValue* top(Kind kind) {
    PickleValue* value = pop();
    stack_.push_back(value);
    if (value->kind != kind) broken("values are put into what is no container");
    return value;
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
    if (found == memo_.end()) broken("a value that was never kept is asked for");
    stack_.push_back(found->second);
  }
  void set_items(const std::vector<PickleValue*>& values) {
    if (values.size() % 2 != 0) broken("a key without a value");
    PickleValue* dict = top(Kind::kDict);
    for (size_t i = 0; i < values.size(); i += 2) {
      dict->items.push_back(values[i]);
      dict->items.push_back(values[i + 1]);
    }
  }
  void append(const std::vector<PickleValue*>& values) {
    PickleValue* list = top(Kind::kSequence);
    list->items.insert(list->items.end(), values.begin(), values.end());
  }

  void push_global() {
    const std::string module = line();
    std::string name = fmt::format("{}.{}", module, line());
    const bool is_known = pickle_function(name) || dtype_of_storage(name) || is_script_class(name);
    if (!is_known) {
      refuse(fmt::format("the file holds {}, which is no plain tensor, container or number",
                         quoted_name(name)),
             "save model.state_dict(), dense and not quantised; objects of other classes are not "
             "read, since making them runs code");
    }
    push({.kind = Kind::kGlobal, .text = std::move(name)});
  }

  const PickleValue& item(const PickleValue& sequence, size_t index, Kind kind) const {
    if (sequence.kind != Kind::kSequence || index >= sequence.items.size() ||
        sequence.items[index]->kind != kind) {
      broken("arguments that nothing takes");
    }
    return *sequence.items[index];
  }
  std::vector<int64_t> integers(const PickleValue& sequence) const {
    if (std::ssize(sequence.items) > kMaxDimensions) broken("a tensor of too many dimensions");
    std::vector<int64_t> values;
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      values.push_back(item(sequence, i, Kind::kInteger).integer);
    }
    return values;
  }

  // ('storage', torch.FloatStorage, key, device, numel)
  void push_storage() {
    const PickleValue& id = *pop();
    if (item(id, 0, Kind::kText).text != "storage") broken("a persistent value of unknown kind");
    const auto dtype = dtype_of_storage(item(id, 1, Kind::kGlobal).text);
    if (!dtype) broken("a storage of unknown type");
    const std::string& key = item(id, 2, Kind::kText).text;
    constexpr size_t kMaxKeyBytes = 256;
    if (key.size() > kMaxKeyBytes) broken("a storage of too long a name");
    push_tensor(
        Kind::kStorage,
        {.dtype = *dtype, .record = key, .record_numel = item(id, 4, Kind::kInteger).integer});
  }
  void push_tensor(Kind kind, PickledTensor tensor) {
    // Of weights, and of what a training script keeps beside them.
    constexpr int64_t kMaxTensors = 4 * kMaxEntries;
    if (++tensors_ > kMaxTensors) {
      refuse(fmt::format("more than {} tensors and storages", kMaxTensors),
             "save model.state_dict() alone");
    }
    push({.kind = kind, .tensor = std::make_unique<PickledTensor>(std::move(tensor))});
  }

  void reduce() {
    const PickleValue& arguments = *pop();
    const PickleValue& called = *pop();
    const auto function =
        called.kind == Kind::kGlobal ? pickle_function(called.text) : std::nullopt;
    if (!function || arguments.kind != Kind::kSequence) {
      broken("what is called is no function");
    }
    switch (*function) {
      case PickleFunction::kDict:
        if (!arguments.items.empty()) broken("an OrderedDict of arguments");
        push({.kind = Kind::kDict});
        break;
      case PickleFunction::kTensor: {
        PickledTensor tensor = *item(arguments, 0, Kind::kStorage).tensor;
        tensor.offset = item(arguments, 1, Kind::kInteger).integer;
        tensor.shape = integers(item(arguments, 2, Kind::kSequence));
        tensor.strides = integers(item(arguments, 3, Kind::kSequence));
        push_tensor(Kind::kTensor, std::move(tensor));
        break;
      }
      case PickleFunction::kParameter:
        push_tensor(Kind::kTensor, *item(arguments, 0, Kind::kTensor).tensor);
        break;
      case PickleFunction::kFirstArgument:
        if (arguments.items.empty()) broken("a function without arguments");
        stack_.push_back(const_cast<PickleValue*>(arguments.items[0]));
        break;
    }
  }

  void new_object() {
    pop();  // the arguments: none in TorchScript
    const PickleValue& type = *pop();
    if (type.kind != Kind::kGlobal || !is_script_class(type.text)) broken("an object of no class");
    push({.kind = Kind::kObject, .text = type.text});
  }

  // A state_dict's own attributes (its versions) are of no meaning here.
  void build() {
    const PickleValue& state = *pop();
    PickleValue* built = pop();
    stack_.push_back(built);
    if (built->kind == Kind::kDict) return;
    if (built->kind != Kind::kObject) broken("attributes of what has none");
    if (state.kind != Kind::kDict) {
      refuse(fmt::format("an object of class {} keeps its state in a way of its own",
                         quoted_name(built->text)),
             "save model.state_dict() instead");
    }
    built->items = {&state};
  }

  int64_t long1() {
    const auto bytes = take(number<uint8_t>());
    if (bytes.size() > sizeof(int64_t)) return 0;  // no size, stride or step is that large
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof value; ++i) {
      const bool is_negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{};
      const auto byte = i < bytes.size() ? static_cast<uint64_t>(bytes[i]) : is_negative ? 0xff : 0;
      value |= byte << (8 * i);
    }
    return static_cast<int64_t>(value);
  }

  // False: it is over.
  bool step() {
    const size_t begin = at_;
    switch (opcode()) {
      case Opcode::kStop:
        return false;
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
        push_integer(long1());
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
        broken(fmt::format("an instruction that torch.save does not write ({:#04x})",
                           static_cast<int>(bytes_[at_])));
    }
    return true;
  }

  const std::span<const std::byte> bytes_;
  const std::string& file_;
  size_t at_ = 0;
  int64_t tensors_ = 0;
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
