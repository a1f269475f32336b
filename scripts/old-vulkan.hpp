// Included before every C++ file of llama.cpp by `just gpu-soft`, where the distribution's Vulkan headers are older than
// VK_EXT_layer_settings (1.3.272): llama.cpp names the extension's types, but uses it only to debug. A driver skips a
// structure that it does not know.
#pragma once
#if __has_include(<vulkan/vulkan_core.h>)
#include <vulkan/vulkan_core.h>
#if VK_HEADER_VERSION < 272
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : uint32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void * pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings) :
        settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

    uint32_t sType = 1000496000; // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void * pNext = nullptr;
    uint32_t settingCount;
    const LayerSettingEXT * pSettings;
};

} // namespace vk

#endif
#endif
