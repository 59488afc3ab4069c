// Parses the text of a PTX module into kernels. Handles directives, declarations, scopes and
// labels.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "simulator/ptx/decode.h"

namespace fsdp::testing::ptx {
namespace {

// A statement, which ends with ';', a label, which ends with ':', or a scope with its own braces.
struct Statement {
  std::string text;
  int line = 0;
};

std::string without_comments(const std::string& text) {
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size());
    if (i < text.size() && text.compare(i, 2, "/*") == 0) {
      const size_t end = text.find("*/", i);
      // The line breaks of a comment remain, so that line numbers in errors are correct.
      kept += std::string(
          std::count(text.begin() + i, text.begin() + std::min(end, text.size()), '\n'), '\n');
      i = std::min(end, text.size() - 2) + 2;
    }
    if (i < text.size()) kept += text[i];
  }
  return kept;
}

class Cursor {
 public:
  explicit Cursor(std::string text) : text_(std::move(text)) {}

  int line() const { return line_; }
  bool at_end() {
    skip_white();
    return at_ == text_.size();
  }
  bool takes(char letter) {
    skip_white();
    if (at_ == text_.size() || text_[at_] != letter) return false;
    advance(1);
    return true;
  }
  bool sees(std::string_view word) {
    skip_white();
    return text_.compare(at_, word.size(), word) == 0;
  }
  std::string line_rest() { return until("\n", false); }
  // Returns the text up to the next of these letters. The letter is consumed only if `taken`.
  std::string until(std::string_view letters, bool taken) {
    skip_white();
    const size_t end = std::min(text_.find_first_of(letters, at_), text_.size());
    std::string found = text_.substr(at_, end - at_);
    advance(end - at_);
    if (taken && at_ < text_.size()) advance(1);
    return std::string(trimmed(found));
  }

  // Returns the next statement of a body. Braces inside a statement belong to its vectors.
  Statement statement() {
    skip_white();
    Statement found{.text = {}, .line = line_};
    int braces = 0;
    while (at_ < text_.size()) {
      const char letter = text_[at_];
      if (braces == 0 && (letter == ';' || letter == ':')) {
        // "::" is part of a modifier and does not end a label.
        if (letter == ':' && text_.compare(at_, 2, "::") == 0) {
          found.text += "::";
          advance(2);
          continue;
        }
        if (letter == ':') found.text += ':';
        advance(1);
        break;
      }
      braces += letter == '{' ? 1 : letter == '}' ? -1 : 0;
      found.text += letter;
      advance(1);
    }
    found.text = std::string(trimmed(found.text));
    return found;
  }

 private:
  void skip_white() {
    while (at_ < text_.size() && isspace(static_cast<unsigned char>(text_[at_])) != 0) advance(1);
  }
  void advance(size_t letters) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + at_ + letters, '\n'));
    at_ += letters;
  }

  const std::string text_;
  size_t at_ = 0;
  int line_ = 1;
};

struct Declaration {
  std::string name;
  int64_t bytes = 0;
  int64_t alignment = 1;
};

// Parses a declaration without its space: ".param .align 8 .b8 table[32]" or ".shared .align 4 .f32
// partial[8]".
Declaration declaration_of(std::string_view text, int line) {
  Declaration found;
  std::optional<Type> type;
  std::vector<std::string> words = split(text, ' ');
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ".align") {
      found.alignment = std::stoll(words.at(++i));
    } else if (word.starts_with('.')) {
      if (const auto found_type = type_of(word.substr(1))) type = found_type;
    } else if (!word.empty()) {
      found.name = word;
    }
  }
  if (!type) throw Objection(fmt::format("a declaration without a type (line {}: {})", line, text));
  int64_t count = 1;
  if (const size_t bracket = found.name.find('['); bracket != std::string::npos) {
    const std::string digits = found.name.substr(bracket + 1);
    count = digits.starts_with(']') ? 0 : std::stoll(digits);
    found.name.resize(bracket);
  }
  if (count == 0)
    throw Objection(fmt::format("memory of the launch's size (line {}: {})", line, text));
  found.bytes = count * type->bytes();
  found.alignment = std::max<int64_t>(found.alignment, type->bytes());
  return found;
}

// Returns the aligned offset of the next variable, and moves `used` behind the variable.
int64_t place(int64_t& used, const Declaration& declared) {
  used = round_up(used, declared.alignment);
  return std::exchange(used, used + declared.bytes);
}

class KernelParser {
 public:
  KernelParser(Cursor& cursor, const std::map<std::string, Variable, std::less<>>& outer,
               int64_t shared_bytes)
      : cursor_(cursor), variables_(outer) {
    kernel_.shared_bytes = shared_bytes;
    names_.register_of = [this](std::string_view name) { return register_of(name); };
    names_.variable_of = [this](std::string_view name) { return variable_of(name); };
  }

  Kernel parse(std::string name) {
    kernel_.name = std::move(name);
    parameters();
    cursor_.until("{", true);  // skips .maxntid and similar launch limits
    body();
    // Branches may jump forward, so labels are resolved when the body is complete.
    for (const auto& [at, label] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) object(fmt::format("unknown label '{}'", label));
      kernel_.code[at].target = found->second;
    }
    kernel_.code.push_back({.opcode = Opcode::kExit, .text = "the end"});
    return std::move(kernel_);
  }

 private:
  [[noreturn]] void object(std::string_view what) const {
    throw Objection(fmt::format("{} (kernel {})", what, kernel_.name));
  }

  void parameters() {
    if (!cursor_.takes('(')) return;
    for (const std::string& text : split(cursor_.until(")", true), ',')) {
      if (text.empty()) continue;
      const Declaration declared = declaration_of(text, cursor_.line());
      variables_[declared.name] = {.space = Space::kParameter,
                                   .offset = place(kernel_.parameter_bytes, declared),
                                   .bytes = declared.bytes};
      kernel_.parameters.push_back(variables_[declared.name]);
    }
  }

  void body() {
    scopes_.emplace_back();
    while (!scopes_.empty()) {
      if (cursor_.takes('}')) {
        scopes_.pop_back();
      } else if (cursor_.takes('{')) {
        scopes_.emplace_back();
      } else if (cursor_.at_end()) {
        object("its body does not end");
      } else if (cursor_.sees(".loc") || cursor_.sees(".file")) {
        cursor_.line_rest();
      } else {
        take(cursor_.statement());
      }
    }
  }

  void take(const Statement& statement) {
    const std::string& text = statement.text;
    if (text.ends_with(':')) {
      labels_[text.substr(0, text.size() - 1)] = static_cast<int>(kernel_.code.size());
    } else if (text.starts_with(".reg")) {
      declare_registers(text);
    } else if (text.starts_with(".shared")) {
      declare(Space::kShared, kernel_.shared_bytes, text, statement.line);
    } else if (text.starts_with(".local")) {
      declare(Space::kLocal, kernel_.local_bytes, text, statement.line);
    } else if (text.starts_with(".pragma")) {
      return;  // a hint for loop unrolling
    } else if (text.starts_with('.')) {
      object(fmt::format("unknown directive '{}' in line {}", text, statement.line));
    } else if (!text.empty()) {
      std::string label;
      kernel_.code.push_back(decode(text, statement.line, names_, label));
      if (!label.empty()) jumps_.emplace_back(kernel_.code.size() - 1, label);
    }
  }

  void declare(Space space, int64_t& used, const std::string& text, int line) {
    const Declaration declared = declaration_of(text, line);
    variables_[declared.name] = {
        .space = space, .offset = place(used, declared), .bytes = declared.bytes};
  }

  // Declares the registers of ".reg .b32 %r<12>" or ".reg .b16 low, high".
  void declare_registers(std::string_view text) {
    const size_t type_end = text.find_first_of(" \t", text.find('.', 1));
    for (const std::string& name : split(text.substr(type_end), ',')) {
      const size_t bracket = name.find('<');
      if (bracket == std::string::npos) {
        scopes_.back()[name] = kernel_.registers++;
        continue;
      }
      const int count = std::stoi(name.substr(bracket + 1));
      for (int i = 0; i < count; ++i) {
        scopes_.back()[name.substr(0, bracket) + std::to_string(i)] = kernel_.registers++;
      }
    }
  }

  std::optional<int> register_of(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    }
    return std::nullopt;
  }

  std::optional<Variable> variable_of(std::string_view name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? std::nullopt : std::optional(found->second);
  }

  Cursor& cursor_;
  Names names_;
  Kernel kernel_;
  std::map<std::string, Variable, std::less<>> variables_;
  std::vector<std::map<std::string, int, std::less<>>> scopes_;  // registers, innermost last
  std::map<std::string, int> labels_;
  std::vector<std::pair<size_t, std::string>> jumps_;
};

}  // namespace

Module parse(const std::string& text) {
  Module module;
  Cursor cursor(without_comments(text));
  std::map<std::string, Variable, std::less<>> shared;  // shared by all kernels of the module
  int64_t shared_bytes = 0;
  while (!cursor.at_end()) {
    const int line = cursor.line();
    if (cursor.sees(".version") || cursor.sees(".target") || cursor.sees(".address_size") ||
        cursor.sees(".file")) {
      cursor.line_rest();
      continue;
    }
    const std::string head = cursor.until("(;{", false);
    if (const size_t entry = head.find(".entry"); entry != std::string::npos) {
      std::string name(trimmed(std::string_view(head).substr(entry + 6)));
      Kernel kernel = KernelParser(cursor, shared, shared_bytes).parse(name);
      module.insert_or_assign(std::move(name), std::move(kernel));
    } else if (head.starts_with(".section")) {  // for debuggers
      cursor.until("}", true);
    } else if (head.find(".shared") != std::string::npos && cursor.takes(';')) {
      const Declaration declared = declaration_of(head, line);
      shared[declared.name] = {Space::kShared, place(shared_bytes, declared), declared.bytes};
    } else {
      throw Objection(fmt::format("unknown directive '{}' in line {}", head, line));
    }
  }
  return module;
}

}  // namespace fsdp::testing::ptx
