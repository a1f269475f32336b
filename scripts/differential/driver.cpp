// Reads model outputs with llama.cpp's own chat parser.
//
// Usage: llama-chat-parse TEMPLATE. The first line on standard input is a request (`messages` and `tools` as the API has
// them, `bos_token`, `eos_token`); each further line is a JSON string, a whole output. For each comes one line: the
// message, or an error.

#include "chat.h"
#include "json.h"

#include <fstream>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

using json = nlohmann::ordered_json;

static std::string read(const char * path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static json parse(const std::string & output, const common_chat_parser_params & params) {
    const auto message = common_chat_parse(output, false, params);
    json calls = json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
    }
    return {{"content", message.content}, {"reasoning", message.reasoning_content}, {"calls", calls}};
}

int main(int argc, char ** argv) {
    std::string line;
    if (argc != 2 || !std::getline(std::cin, line)) {
        std::cerr << "usage: llama-chat-parse TEMPLATE < LINES\n";
        return 2;
    }
    common_chat_parser_params params;
    try {
        const auto request = json::parse(line);
        const auto templates = common_chat_templates_init(
            nullptr, read(argv[1]), request.value("bos_token", ""), request.value("eos_token", ""));
        common_chat_templates_inputs inputs;
        inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(request.at("messages").dump()));
        inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(request.at("tools").dump()));
        inputs.parallel_tool_calls = true;
        inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
        const auto applied = common_chat_templates_apply(templates.get(), inputs);
        params = common_chat_parser_params(applied);
        params.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
        params.parser.load(applied.parser);
        std::cout << json({{"prompt", applied.prompt}}).dump() << std::endl;
    } catch (const std::exception & error) {
        std::cout << json({{"unusable", error.what()}}).dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
        return 0;
    }
    while (std::getline(std::cin, line)) {
        json answer;
        try {
            answer = parse(json::parse(line).get<std::string>(), params);
        } catch (const std::exception & error) {
            answer = {{"error", error.what()}};
        }
        std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
}
